# Sourced: two network namespaces, $one and $two, with a veth pair between them, 10.77.0.1 and 10.77.0.2. Two hosts, as far as the
# network goes. Needs root. `remove_namespaces` takes them away.
one=dunlin-ofi-a-$$ two=dunlin-ofi-b-$$
remove_namespaces() { ip netns del "$one" 2>/dev/null || true; ip netns del "$two" 2>/dev/null || true; }
make_namespaces() {
    ip netns add "$one"
    ip netns add "$two"
    ip -n "$one" link add veth0 type veth peer name veth0 netns "$two"
    ip -n "$one" addr add 10.77.0.1/24 dev veth0
    ip -n "$two" addr add 10.77.0.2/24 dev veth0
    local space
    for space in "$one" "$two"; do ip -n "$space" link set lo up; ip -n "$space" link set veth0 up; done
}
