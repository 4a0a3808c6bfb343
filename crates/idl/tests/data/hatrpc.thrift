#!/usr/local/bin/thrift --gen cpp

// The words and the layout that HatRPC's own IDL files have: no separators, hints right behind the brackets.
namespace cpp ycsb

struct statistics {
    1:binary name;
    2:i64 count;
    3:list<double> durations;
}

service ycsb {
    hint: perf_pref=event;
    s_hint: proto=direct_write_imm;
    c_hint: proto=direct_write_imm;

    bool start()
    void finish(1:list<statistics> all, 2:double rate)
    i32 PUT(1:binary key, 2:binary value) [hint: perf_pref=busy; s_hint: proto=eager; c_hint: proto=eager;]
    binary GET(1:binary key)
}
