# HatRPC section 4.4: keys of 24 bytes, ten fields of 100 bytes, batches of ten.
namespace rs hatkv

service HatKV {
    hint: concurrency=128, perf_goal=throughput;

    i32 PUT(1:binary key, 2:binary value) [c_hint: payload_size=1KB; s_hint: payload_size=4;]
    binary GET(1:binary key) [c_hint: payload_size=24; s_hint: payload_size=1KB;]
    i32 MULTIPUT(1:list<binary> keys, 2:list<binary> values), [c_hint: payload_size=10KB; s_hint: payload_size=4;]
    list<binary> MULTIGET(1:list<binary> keys); [c_hint: payload_size=240; s_hint: payload_size=10KB;]
    i32 DEL(1:binary key)
}
