//! `dunlin explain`: plans with reasons and positions, and errors for invalid files.

use dunlin_command_testing::{Folder, Running, dunlin};

const KV: &str = "\
service KV {
  hint: perf_goal = throughput, concurrency = 64;
  binary get(1: binary key) [ hint: perf_goal = latency, payload_size = 1KB; c_hint: polling = busy; ]
  list<binary> multiget(1: list<binary> keys) [ hint: payload_size = 10KB; ]
  oneway void heartbeat() [ hint: transport = tcp; ]
}
";

/// Returns the row of a function and a side.
#[track_caller]
fn row<'a>(text: &'a str, function: &str, side: &str) -> Vec<&'a str> {
    let rows = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    rows.into_iter()
        .find(|row| row.get(1) == Some(&function) && row.get(2) == Some(&side))
        .unwrap_or_else(|| panic!("no row of {function} {side} in:\n{text}"))
}

#[test]
fn plans_are_shown_with_reasons_and_places() {
    let folder = Folder::new("explain");
    let file = folder.write("kv.thrift", KV);
    let json = folder.file("plans.json");
    let ended = dunlin([
        "explain",
        &file,
        "--fabric",
        "rnic",
        "--cores",
        "16",
        "--machine-cores",
        "28",
        "--json",
        &json,
    ])
    .well();
    assert_eq!(ended.errors, "");
    let text = ended.text();
    assert_eq!(
        row(&text, "get", "client")[3..8],
        ["rnic", "Direct-WriteIMM", "write_imm", "write_imm", "busy"]
    );
    assert_eq!(
        row(&text, "get", "server")[3..8],
        ["rnic", "Direct-WriteIMM", "write_imm", "write_imm", "adaptive"]
    );
    assert_eq!(
        row(&text, "multiget", "client")[3..8],
        ["rnic", "Remote-fetch", "write_imm", "fetch", "busy"]
    );
    assert_eq!(row(&text, "multiget", "server")[7], "event");
    assert_eq!(row(&text, "heartbeat", "client")[3..], ["tcp"]);
    for reason in [
        format!("client polling: polling = busy ({file}:3:86)"),
        format!("transport: transport = tcp ({file}:5:35)"),
        format!(
            "request: perf_goal = throughput, large requests (10KB), 64 clients, over-subscribed: Remote-fetch ({file}:2:9, 4:55, 2:33)"
        ),
    ] {
        assert!(text.contains(&reason), "'{reason}' is missing in:\n{text}");
    }

    let document: serde_json::Value =
        serde_json::from_slice(&std::fs::read(json).expect("written")).expect("JSON");
    assert_eq!(document["name"], "explain");
    let rows = document["rows"].as_array().expect("rows");
    assert_eq!(rows.len(), 6);
    let get = rows.iter().find(|row| row["function"] == "get" && row["side"] == "client").expect("a row");
    assert_eq!((&get["protocol"], &get["polling"]), (&"Direct-WriteIMM".into(), &"busy".into()));
    let reasons = get["reasons"].as_array().expect("reasons");
    let polling = reasons.iter().find(|reason| reason["about"] == "client polling").expect("a reason");
    assert_eq!(polling["places"], serde_json::json!([format!("{file}:3:86")]));
    assert!(reasons.iter().all(|reason| reason["about"] != "server polling"));
}

#[test]
fn the_sharing_of_connections_is_explained() {
    let folder = Folder::new("explain-sharing");
    let file = folder.write("kv.thrift", KV);
    let json = folder.file("plans.json");
    let on_rnic = ["explain", &file, "--fabric", "rnic", "--cores", "16", "--clients"];
    let many = on_rnic.into_iter().chain(["257", "--json", &json]);
    let text = dunlin(many).well().text();
    let reason = "  sharing: 257 clients, more than the 256 queue pairs that a server keeps active by default: combined";
    assert!(text.contains(reason), "{text}");
    let document: serde_json::Value =
        serde_json::from_slice(&std::fs::read(json).expect("written")).expect("JSON");
    for row in document["rows"].as_array().expect("rows") {
        let shares = row["side"] == "client" && row["function"] != "heartbeat";
        assert_eq!(row.get("sharing"), shares.then_some(&"combined".into()), "{row}");
    }
    let text = dunlin(on_rnic.into_iter().chain(["256", "--side", "server"])).well().text();
    assert!(!text.contains("sharing: "), "{text}");
    let text = dunlin(["explain", &file, "--clients", "257"]).well().text();
    assert!(
        text.contains("sharing: on shm the sender's processor copies") && text.contains("dedicated"),
        "{text}"
    );
    // One of several functions: all use the same connections.
    let one = folder.write(
        "one.thrift",
        "service S {\n  void f() (concurrency = \"1000\")\n  void g() (concurrency = \"2\")\n}\n",
    );
    let text = dunlin(["explain", &one, "--fabric", "rnic"]).well().text();
    assert!(text.contains("so as 'f': combined"), "{text}");
    let grouped = folder.write(
        "grouped.thrift",
        "service S {\n  void f() (protocol = \"eager\", sharing = \"grouped\")\n}\n",
    );
    dunlin(["explain", &grouped]).failed(1, &["sharing = grouped cannot run", ":2:33"]);
    // The groups are the paper's, unless the rates of the NIC are known.
    let grouped = folder.write("turns.thrift", "service S {\n  void f() (sharing = \"grouped\")\n}\n");
    let groups = |ground: [&str; 2]| {
        let text = dunlin(["explain", &grouped].into_iter().chain(ground)).well().text();
        let line = text.lines().find(|line| line.contains("groups of"));
        line.unwrap_or_else(|| panic!("{text}")).to_owned()
    };
    assert!(groups(["--fabric", "rnic"]).contains("groups of 40 clients, each served for 100µs"));
    let known = groups(["--profile", "scalerpc"]);
    assert!(!known.contains("groups of 40 clients") && known.contains("fetch-table"), "{known}");
}

#[test]
fn clients_cores_and_side_change_what_is_shown() {
    let folder = Folder::new("explain-options");
    let file = folder.write("kv.thrift", KV);
    let on_rnic = |clients: &str| {
        let options = ["--fabric", "rnic", "--clients", clients, "--cores", "16"];
        dunlin(["explain", &file].into_iter().chain(options)).well().text()
    };
    let text = on_rnic("16");
    assert_eq!(
        row(&text, "multiget", "server")[4..8],
        ["Direct-WriteIMM", "write_imm", "write_imm", "adaptive"]
    );
    let text = on_rnic("17");
    assert_eq!(row(&text, "multiget", "server")[4], "Remote-fetch");
    // Shared memory has its own table, and the reasons cite both.
    let text = dunlin(["explain", &file, "--clients", "17", "--cores", "16"]).well().text();
    assert_eq!(row(&text, "multiget", "server")[4..8], ["Server-reply", "write", "write", "adaptive"]);
    assert!(text.contains("over-subscribed: Remote-fetch") && text.contains("on shm the sender's"), "{text}");
    // Workers and clients of one host that outnumber its cores.
    let crowded =
        "4 workers and 1 client on 2 cores: more threads than cores, so the workers wait adaptively";
    let text = dunlin(["explain", &file, "--workers", "4", "--clients", "1", "--cores", "2"]).well().text();
    assert!(text.contains(crowded), "{text}");
    let text =
        dunlin(["explain", &file, "--workers", "4", "--cores", "16", "--fabric", "rnic"]).well().text();
    assert!(!text.contains("on 16 cores"), "clients of an RNIC are on other hosts: {text}");
    let text = dunlin(["explain", &file, "--side", "server"]).well().text();
    assert!(text.contains("server polling") && !text.contains("client polling"), "{text}");
    dunlin(["explain", &file, "--clients", "0"]).failed(2, &["--clients"]);
    dunlin(["explain", &file, "--side", "left"]).failed(2, &["client", "server", "both"]);
    dunlin(["explain", &file, "--json", "/no/such/folder/x"]).failed(1, &["folder"]);
}

#[test]
fn iwarp_gets_what_it_can_do_and_the_reason() {
    let folder = Folder::new("explain-iwarp");
    let file = folder.write("s.thrift", "service S { void quick() [ hint: perf_goal = latency; ] }");
    let text = dunlin(["explain", &file, "--fabric", "iwarp", "--cores", "16"]).well().text();
    assert!(text.contains("fabric: iwarp"), "{text}");
    assert_eq!(row(&text, "quick", "client")[4..8], ["AR-gRPC", "send", "send", "adaptive"]);
    let why = "send in the place of write_imm: this fabric has no immediate data";
    assert!(text.contains(why), "{text}");
    let folder = Folder::new("explain-iwarp-refused");
    let file = folder.write("p.thrift", "service S { void f() [ hint: protocol = FaSST; ] }");
    dunlin(["explain", &file, "--fabric", "iwarp"]).failed(1, &["FaSST", "datagrams"]);
    let listed = dunlin(["protocols", "--fabric", "iwarp"]).well().text();
    let waits =
        |name: &str| listed.lines().find(|line| line.starts_with(name)).unwrap_or_default().to_owned();
    assert!(waits("FaSST").contains("  -  ") && !waits("Server-reply").contains("  -  "), "{listed}");
}

#[test]
fn wrong_files_are_refused_with_places() {
    let folder = Folder::new("explain-wrong");
    let wrong = KV.replace("perf_goal = latency", "perf_gaol = latency").replace("10KB", "10XB");
    let file = folder.write("kv.thrift", &wrong);
    let ended = dunlin(["explain", &file]);
    assert_eq!(ended.text(), "");
    ended.failed(
        1,
        &[
            &format!("{file}:3:37"),
            "unknown hint 'perf_gaol'",
            "^^^^^^^^^",
            "did you mean 'perf_goal'?",
            &format!("{file}:4:70"),
            "'10XB' is not a value of payload_size",
            "2 errors",
        ],
    );
    let ended = dunlin(["explain", &file, "--lenient", "--cores", "64", "--fabric", "rnic"]).well();
    assert!(ended.errors.contains("warning: unknown hint 'perf_gaol'"), "{}", ended.errors);
    assert_eq!(row(&ended.text(), "get", "server")[7], "event");
    dunlin(["explain", &folder.file("missing.thrift")]).failed(1, &["missing.thrift", "cannot read"]);
    let empty = folder.write("types.thrift", "struct A {}");
    dunlin(["explain", &empty]).failed(1, &["has no service", "help: "]);
    let against = folder
        .write("against.thrift", "service S { void f() [hint: proto = server_reply, polling = event;] }");
    dunlin(["explain", &against]).failed(1, &["against.thrift:1:51", "against.thrift:1:29"]);
}

#[test]
fn included_files_are_looked_for_where_they_are_said_to_be() {
    let folder = Folder::new("explain-include");
    std::fs::create_dir(folder.0.join("shared")).expect("a folder");
    folder.write("shared/base.thrift", "service Base { hint: polling = event; void ping() }");
    let file =
        folder.write("kv.thrift", "include \"base.thrift\"\nservice KV extends base.Base { void f() }");
    dunlin(["explain", &file]).failed(1, &["there is no file 'base.thrift'", "looked in"]);
    let shared = folder.file("shared");
    let text = dunlin(["explain", &file, "-I", &shared]).well().text();
    assert_eq!((row(&text, "ping", "client")[7], row(&text, "f", "server")[7]), ("event", "event"));
    assert!(text.contains("shared/base.thrift:1:22"), "{text}");
}

#[test]
fn the_model_of_a_cluster_has_its_say() {
    let folder = Folder::new("explain-model");
    let file = folder.write(
        "kv.thrift",
        "service KV {
  hint: perf_goal = latency;
  binary get(1: binary key) [ hint: payload_size = 64KB; ]
  binary named(1: binary key) [ hint: protocol = eager, concurrency = 29, process_time = long; ]
  oneway void heartbeat() [ hint: transport = tcp; ]
}
",
    );
    let json = folder.file("plans.json");
    let ended = dunlin(["explain", &file, "--profile", "hatrpc", "--json", &json]).well();
    let text = ended.text();
    assert!(text.contains("of the server: 28; fabric: hatrpc"), "{text}");
    // Also for the function whose hints name the protocol.
    assert_eq!(text.matches("model hatrpc: Direct-WriteIMM as selected: ").count(), 1, "{text}");
    assert_eq!(text.matches("model hatrpc: Eager-SendRecv as named: ").count(), 1, "{text}");
    assert_eq!(text.matches("model hatrpc: not asked, since its calls go by TCP").count(), 1, "{text}");
    // NIC, hosts, threads, and the handler's time.
    let assumed = "model hatrpc assumes: ConnectX-5; 1 client on 1 host of 28 cores, 1 worker on one host; handlers of 0";
    assert_eq!(text.matches(assumed).count(), 1, "{text}");
    let assumed = "model hatrpc assumes: ConnectX-5; 29 clients on 2 hosts of 28 cores, 28 workers on one host; handlers of 20us;";
    assert_eq!(text.matches(assumed).count(), 1, "{text}");
    let document: serde_json::Value =
        serde_json::from_slice(&std::fs::read(json).expect("written")).expect("JSON");
    for row in document["rows"].as_array().expect("rows") {
        let forecasts = row["model"]["forecasts"].as_array().map_or(0, Vec::len);
        assert_eq!(forecasts > 5, row["function"] != "heartbeat", "{row}");
    }
    dunlin(["explain", &file, "--profile", "hatrcp"]).failed(1, &["hatrpc"]);
}

/// Shows the possible resolutions of `auto:` here and its resolution for a server, on which the plans are
/// based.
#[test]
fn what_auto_takes_is_told() {
    let folder = Folder::new("explain-auto");
    let file = folder.write("s.thrift", "service S { void quick() [ hint: perf_goal = latency; ] }");
    let told = |more: &[&str]| dunlin(["explain", &file].iter().chain(more)).well().text();
    let text = told(&["--rdma-device", "none-such"]);
    assert!(text.contains("auto: takes from here shm to a server on this host, else "), "{text}");
    assert!(text.contains("tcp (typed services only), as far as the server has it; not rdma: "), "{text}");
    let text = told(&["--without", "shm", "--without", "rdma", "--without", "ofi"]);
    assert!(text.contains("auto: takes from here tcp (typed services only), "), "{text}");

    let server = Running::start(["kv", "serve", "--listen", "auto:127.0.0.1:0"]);
    let line = server.line();
    let address = line.strip_prefix("listening on ").expect("an address");
    let ended = dunlin(["explain", &file, "--at", address]).well();
    assert!(ended.errors.contains("warning: the server does not say what it runs: "), "{}", ended.errors);
    let text = ended.text();
    assert!(
        text.contains(&format!("{address} is shm:auto-127.0.0.1:")) && text.contains("fabric: shm"),
        "{text}"
    );
    dunlin(["explain", &file, "--at", address, "--fabric", "shm"]).failed(2, &["--fabric"]);
    let text = told(&["--at", "tcp:127.0.0.1:1"]);
    assert!(text.contains("tcp:127.0.0.1:1 is tcp:127.0.0.1:1: named by the address"), "{text}");
    assert!(text.contains("all functions go by stock Thrift over TCP"), "{text}");
    server.signal("TERM");
    server.end().well();
}

/// Shows the source of the rates for a plan that chooses between fetched and written-back results.
#[test]
fn the_table_of_rates_is_told() {
    let folder = Folder::new("explain-rates");
    let file = folder.write(
        "s.thrift",
        "service S { void both() [ hint: protocol = RF-RPC; ] void fetched() [ hint: protocol = Remote-fetch; ] }",
    );
    let cache = folder.file("cache");
    let told = |more: &[&str]| {
        let arguments = ["explain", &file].into_iter().chain(more.iter().copied());
        Running::with_variables(&[("XDG_CACHE_HOME", &cache)], arguments).end().well().text()
    };
    let rates = "rates by which results are fetched or written back: ";
    let typical = "built in (typical of shared memory), by which all are written back: no READ is cheaper";
    for (fabric, built_in) in [("shm", typical), ("rnic", "built in (RF-RPC's figure 1)")] {
        let text = told(&["--fabric", fabric]);
        assert!(text.contains(&format!("{rates}{built_in}; `dunlin bench fetch-table`")), "{text}");
        assert!(text.contains("results are always fetched, whatever the rates"), "{text}");
    }
    // The rates are measured for this machine, but not for an RNIC.
    Running::with_variables(
        &[("XDG_CACHE_HOME", cache.as_str())],
        ["bench", "fetch-table", "--rounds", "1", "--sizes", "32,256,1KiB,4KiB", "--peers=1"],
    )
    .end()
    .well();
    assert!(told(&[]).contains(&format!("{rates}measured on ")), "{}", told(&[]));
    assert!(told(&["--fabric", "rnic"]).contains("built in"));
}

/// Shows where each function runs, and why.
#[test]
fn the_place_of_a_function_is_told() {
    let folder = Folder::new("explain-runs");
    let file = folder.write(
        "s.thrift",
        "service S {
  void quick() [ hint: perf_goal = latency; ]
  void slow() [ s_hint: process_time = long; ]
  void brief() [ hint: process_time = 2us; ]
}
",
    );
    let text = dunlin(["explain", &file]).well().text();
    let line = |name: &str, side: &str| {
        let rows = text.lines().filter(|line| line.contains(name) && line.contains(side));
        rows.map(str::trim_end).next().unwrap_or_default().to_owned()
    };
    for (name, place) in [("quick", "worker"), ("slow", "pool"), ("brief", "worker")] {
        assert!(line(name, "server").ends_with(place), "{name}: {text}");
        assert!(!line(name, "client").ends_with(place), "{name}: {text}");
    }
    for reason in [
        "runs on a worker: no process_time, so taken to be shorter than 7us".to_owned(),
        format!("runs in the pool of 2 threads: process_time = long ({file}:3:25)"),
        "runs on a worker: process_time = 2us".to_owned(),
    ] {
        assert!(text.contains(&reason), "'{reason}' is missing in:\n{text}");
    }
}

mod at_a_server {
    use super::{Folder, dunlin};
    use dunlin::thrift::{Context, Failure, FastStr, Never, ServerOptions, serve_with};
    use dunlin_generated::asked::{Asked, AskedProcessor, AskedSayException};

    struct Handler;

    impl Asked for Handler {
        fn say(&self, _: &Context, text: &str) -> Result<FastStr, Failure<AskedSayException>> {
            Ok(FastStr::new(text))
        }

        fn by_tcp(&self, context: &Context) -> Result<bool, Failure<Never>> {
            Ok(context.tcp)
        }

        fn note(&self, _: &Context, _: i32) -> Result<(), Failure<Never>> {
            Ok(())
        }

        fn remote(&self, context: &Context) -> Result<bool, Failure<Never>> {
            Ok(context.tcp)
        }
    }

    /// A running server says where its functions run, and the differences to the file are warnings.
    #[test]
    fn the_two_sides_are_compared() {
        let address = format!("shm:explain-at-{}", std::process::id());
        let options = ServerOptions { pool: vec!["note".into()], ..ServerOptions::default() };
        let fabrics = dunlin::Fabrics::default();
        let server = serve_with(&fabrics, &address, AskedProcessor(Handler), options);
        let server = server.expect("a server");
        let same = concat!(env!("CARGO_MANIFEST_DIR"), "/../generated/idl/asked.thrift");
        let ended = dunlin(["explain", same, "--at", &address]).well();
        assert_eq!(ended.errors, "");
        let text = ended.text();
        assert!(text.contains("the server serves 'Asked'") && text.contains("shm"), "{text}");
        let told = "runs in the pool of 2 threads: ServerOptions::pool (the server says so)";
        assert_eq!(text.matches(told).count(), 1, "{text}");

        let folder = Folder::new("explain-at");
        let file = folder.write(
            "asked.thrift",
            "service Other {
  string say(1: string text) [ hint: protocol = Eager-SendRecv, polling = event; ]
  bool by_tcp()
  void more()
}
",
        );
        let ended = dunlin(["explain", &file, "--at", &address]).well();
        for warning in [
            "warning: the server serves 'Asked', and the file has Other",
            "warning: the server also has the functions note, remote",
            "warning: Other.say: the sides differ: by this file Eager-SendRecv, client event, server event, ",
            "warning: Other.more: the server has no such function",
        ] {
            assert!(ended.errors.contains(warning), "'{warning}' is missing in:\n{}", ended.errors);
        }
        assert!(!ended.errors.contains("Other.by_tcp"), "{}", ended.errors);
        server.shutdown(std::time::Duration::from_secs(1));
    }
}
