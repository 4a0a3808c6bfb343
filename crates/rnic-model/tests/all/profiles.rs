//! Profiles: the built-in ones are complete, and invalid ones are rejected with their place.

use dunlin_rnic_model::{Kind, Parameter, Prices, Profile, ProfileError, Sockets};

const CLUSTER: &str = include_str!("../../profiles/rf-rpc.toml");
const NIC: &str = include_str!("../../profiles/nic/connectx3.toml");

fn refused(cluster: &str) -> String {
    Profile::parse("my.toml", cluster).expect_err("it is wrong").to_string()
}

#[test]
fn every_built_in_profile_is_whole_and_says_where_its_numbers_come_from() {
    let mut hashes = Vec::new();
    for name in Profile::built_in_names() {
        let profile = Profile::built_in(name).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(profile.name(), name);
        for parameter in Parameter::ALL {
            let value = profile.value(*parameter);
            assert!(value.source.len() > 5, "{name}: {}: {}", parameter.name(), value.source);
            if value.kind == Kind::Fit {
                let raw = ["figure", "sweep", "2.4", "apt", "that step"];
                assert!(raw.iter().any(|word| value.source.contains(word)), "{name}: {}", parameter.name());
            }
        }
        assert!(Prices::of(&profile).wake() > 0 && Sockets::of(&profile).send(100) > 0);
        assert!(!hashes.contains(&profile.hash()), "{name} is another profile under another name");
        hashes.push(profile.hash());
    }
    assert_eq!(hashes.len(), 10);
}

#[test]
fn the_hash_is_of_the_numbers_and_of_nothing_else() {
    let profile = Profile::parse("my.toml", CLUSTER).expect("right");
    let renamed = Profile::parse("your.toml", &CLUSTER.replace("eight hosts", "8 hosts")).expect("right");
    assert_eq!(profile.hash(), renamed.hash());
    assert_ne!(profile.hash(), profile.with(Parameter::Mmio, 121.0).hash());
    assert_eq!(profile.with(Parameter::Mmio, 1e9).number(Parameter::Mmio), Parameter::Mmio.range().1);
}

#[test]
fn an_unknown_profile_gets_the_nearest_name() {
    let error = Profile::built_in("scale-rpc").expect_err("unknown").to_string();
    assert!(error.contains("did you mean 'scalerpc'") && error.contains("flock"), "{error}");
}

#[test]
fn an_unknown_key_gets_file_line_and_the_nearest_name() {
    let line = CLUSTER.lines().position(|line| line.starts_with("mtu_bytes")).expect("there") + 1;
    let error = refused(&CLUSTER.replace("mtu_bytes", "mtu_byte"));
    assert_eq!(error, format!("my.toml:{line}: unknown key 'mtu_byte'; did you mean 'mtu_bytes'?"));
    let error = refused(&CLUSTER.replace("[link]", "[lnik]"));
    assert!(error.contains("'lnik'") && error.contains("'link'"), "{error}");
    let error = refused(&CLUSTER.replacen("kind = ", "kimd = ", 1));
    assert!(error.contains("'kimd'") && error.contains("'kind'"), "{error}");
    let error = refused(&CLUSTER.replacen("\"assumed\"", "\"asumed\"", 1));
    assert!(error.contains("'asumed'") && error.contains("'assumed'"), "{error}");
    let error = refused(&CLUSTER.replace("\"connectx3\"", "\"conectx3\""));
    assert!(error.contains("'conectx3'") && error.contains("'connectx3'"), "{error}");
}

#[test]
fn a_missing_key_is_named_with_its_meaning() {
    let without: String =
        CLUSTER.lines().filter(|line| !line.starts_with("mmio_ns")).collect::<Vec<_>>().join("\n");
    let error = refused(&without);
    assert!(error.contains("my.toml: [pcie] lacks 'mmio_ns': From the processor's store"), "{error}");
}

#[test]
fn values_out_of_range_or_without_source_are_refused() {
    let error = refused(&CLUSTER.replacen("gbit_s = { value = 32.0", "gbit_s = { value = 0.0", 1));
    assert!(error.contains("link.gbit_s") && error.contains("between 1 and 1600"), "{error}");
    let error = refused(&CLUSTER.replacen("gbit_s = { value = 32.0", "gbit_s = { value = nan", 1));
    assert!(error.contains("link.gbit_s"), "{error}");
    let line = CLUSTER.lines().find(|line| line.starts_with("mmio_ns")).expect("there");
    assert!(refused(&CLUSTER.replace(line, "mmio_ns = 120.0")).contains("source"));
    assert!(
        refused(&CLUSTER.replace(line, "mmio_ns = { value = 120.0, kind = \"paper\" }")).contains("source")
    );
    let empty = "mmio_ns = { value = 120.0, kind = \"paper\", source = \" \" }";
    assert!(refused(&CLUSTER.replace(line, empty)).contains("says something"));
    assert!(matches!(Profile::parse("my.toml", "title = \n"), Err(ProfileError::Syntax { line: 1, .. })));
}

#[test]
fn a_key_in_the_wrong_file_is_told_where_it_belongs() {
    let nic_key = "\n[cache]\nmiss_ns = { value = 1, kind = \"assumed\", source = \"none, for a test\" }\n";
    assert!(refused(&format!("{CLUSTER}{nic_key}")).contains("override"));
    let overridden = nic_key.replace("[cache]", "[override.cache]");
    let profile = Profile::parse("my.toml", &format!("{CLUSTER}{overridden}")).expect("right");
    assert_eq!(profile.number(Parameter::MissLatency), 1.0);
    let cluster_key = "\n[host]\ncores = { value = 1, kind = \"assumed\", source = \"none, for a test\" }\n";
    let error = Profile::parse_with_nic(("my.toml", CLUSTER), ("nic.toml", &format!("{NIC}{cluster_key}")));
    assert!(error.expect_err("wrong").to_string().contains("the cluster's file"));
    let overridden = cluster_key.replace("[host]", "[override.host]");
    assert!(refused(&format!("{CLUSTER}{overridden}")).contains("without 'override.'"));
}
