//! `dunlin gen`: deterministic code, and errors for invalid files.

use dunlin_command_testing::{Folder, dunlin};

const KV: &str = "\
include \"shared.thrift\"
/** The store. */
service KV extends shared.Base {
  hint: perf_goal = throughput;
  /** The value of a key. */
  binary get(1: binary key) throws (1: shared.Missing missing) [ hint: perf_goal = latency; ]
  oneway void heartbeat()
}
";
const SHARED: &str = "exception Missing { 1: string why }\nservice Base { i32 version() }\n";

#[test]
fn code_is_readable_and_the_same_each_time() {
    let folder = Folder::new("generate");
    let file = folder.write("kv.thrift", KV);
    folder.write("shared.thrift", SHARED);
    let (first, second) = (folder.file("first.rs"), folder.file("second.rs"));
    let ended = dunlin(["gen", &file, "--out", &first]).well();
    assert_eq!(ended.errors, "");
    let text = ended.text();
    assert!(text.starts_with(&first) && text.lines().count() == 1, "{text}");
    dunlin(["gen", &file, "--out", &second]).well();
    let code = std::fs::read_to_string(first).expect("written");
    assert_eq!(code, std::fs::read_to_string(second).expect("written"));
    for part in [
        "/// The store.\n    pub trait Kv {",
        "/// The value of a key.\n        fn get(",
        "pub struct KvClient<",
        "pub struct KvAsyncClient<",
        "pub enum KvError {",
        "pub struct KvProcessor<",
        "hints::Hints::NONE.perf_goal(hints::PerfGoal::Latency)",
        "pub mod shared {",
    ] {
        assert!(code.contains(part), "'{part}' is missing in:\n{code}");
    }
    for part in ["unsafe", "ArgsSend", "ResultRecv;", "::pilota::FastStr,\n    #["] {
        assert!(!code.contains(part), "'{part}' is in:\n{code}");
    }
}

#[test]
fn hints_are_rewritten_for_every_compiler() {
    let folder = Folder::new("generate-thrift");
    let file = folder.write("kv.thrift", KV);
    folder.write("shared.thrift", SHARED);
    let ended = dunlin(["gen", "--thrift", &file]).well();
    let expected = KV
        .replace("  hint: perf_goal = throughput;\n", "")
        .replace("[ hint: perf_goal = latency; ]", "(perf_goal = \"latency\")")
        .replace("heartbeat()\n}\n", "heartbeat()\n} (perf_goal = \"throughput\")\n");
    assert_eq!((ended.text(), ended.errors.as_str()), (expected.clone(), ""));
    let out = folder.file("plain.thrift");
    assert!(dunlin(["gen", "--thrift", &file, "--out", &out]).well().text().contains("7 lines"));
    assert_eq!(std::fs::read_to_string(&out).expect("written"), expected);
    // A file that is rewritten already stays as it is.
    assert_eq!(dunlin(["gen", "--thrift", &out]).well().text(), expected);
    folder.write(
        "shared.thrift",
        "exception Missing { 1: string why }\nservice Base { hint: polling = busy; }\n",
    );
    assert!(
        dunlin(["gen", "--thrift", &file]).well().errors.contains("shared.thrift has hints in brackets too")
    );
    let bad = folder.write("bad.thrift", "service KV { void f() [ hint: perf_gaol = latency; ] }");
    dunlin(["gen", "--thrift", &bad]).failed(1, &["perf_goal"]);
}

#[test]
fn bad_files_are_named_with_the_place() {
    let folder = Folder::new("generate-bad");
    let file = folder
        .write("kv.thrift", "service KV {\n  binary get(1: binary key) [ hint: perf_gaol = latency; ]\n}\n");
    let out = folder.file("kv.rs");
    dunlin(["gen", &file, "--out", &out]).failed(1, &[":2:37", "perf_goal"]);
    assert!(!std::path::Path::new(&out).exists());
    let file =
        folder.write("negative.thrift", "struct S {\n  -1: i32 below\n}\nservice KV { void get(1: S s) }\n");
    dunlin(["gen", &file, "--out", &out]).failed(1, &["negative.thrift:2:", "'below'", "-1"]);
    dunlin(["gen", &folder.file("none.thrift"), "--out", &out]).failed(1, &["none.thrift"]);
}
