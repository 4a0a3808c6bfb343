//! Invalid files are refused; each error has a location, the line and advice.
#![allow(missing_docs, reason = "a test")]

use dunlin_idl::{Diagnostics, Lenience, Memory, Options, Severity, load_with};

fn bad(text: &str) -> Diagnostics {
    load_with("a.thrift", &Options::default(), &Memory::new().with("a.thrift", text)).expect_err(text)
}

/// Expects one error at this location, with these words in its message and advice.
#[track_caller]
fn one(text: &str, line: u32, column: u32, words: &[&str]) {
    let all = bad(text);
    let shown = all.to_string();
    assert_eq!(all.errors(), 1, "{text}\n{shown}");
    let error = all.iter().find(|it| it.severity == Severity::Error).expect("an error");
    assert_eq!((error.place.line, error.place.column), (line, column), "{text}\n{shown}");
    for word in words {
        assert!(shown.contains(word), "'{word}' is missing in:\n{shown}");
    }
    assert!(shown.contains(&format!("a.thrift:{line}:{column}")), "{shown}");
}

#[test]
fn misspelt_hints_are_told_with_the_nearest_word() {
    let service = |hints: &str| format!("service S {{\n  void f() [{hints}]\n}}");
    for (hints, column, words) in [
        ("hint: perf_gaol = latency;", 19, &["unknown hint 'perf_gaol'", "did you mean 'perf_goal'?"][..]),
        (
            "hint: perf_goal = latancy;",
            31,
            &["'latancy' is not a value of perf_goal", "did you mean 'latency'?"],
        ),
        ("hint: polling = bussy;", 29, &["did you mean 'busy'?"]),
        ("hint: payload_size = 1XB;", 34, &["'1XB'", "1KB or 2MB"]),
        ("hint: concurrency = 0;", 33, &["out of bounds", "from 1 to 1000000"]),
        ("hint: protocol = Direct-WriteIM;", 30, &["did you mean 'Direct-WriteIMM'?"]),
        ("hnt: perf_goal = latency;", 13, &["'hnt' is not a group of hints", "did you mean 'hint'?"]),
        ("client: perf_goal = latency;", 13, &["'client' is not a group of hints", "c_hint: for the client"]),
        ("perf_goal = latency;", 13, &["expected 'hint:'", "found 'perf_goal'", "for example ["]),
        ("hint: perf_goal latency;", 29, &["expected '='", "found 'latency'"]),
        ("hint: perf_goal = ;", 31, &["expected a value", "found ';'"]),
        ("hint: ;", 19, &["expected a hint"]),
        ("hint: perf_goal = latency concurrency = 2;", 39, &["expected ',' or ';'", "found 'concurrency'"]),
        (
            "hint: sharing = shared;",
            29,
            &["'shared' is not a value of sharing", "dedicated, combined, grouped, combined_grouped or tier"],
        ),
        ("hint: zzzz = 1;", 19, &["unknown hint 'zzzz'", "hints are perf_goal, concurrency"]),
        (
            "hint: polling = busy; hint: polling = event;",
            41,
            &["polling is said twice on the same level", "a.thrift:2:19: it is here first"],
        ),
    ] {
        one(&service(hints), 2, column, words);
    }
}

#[test]
fn the_line_is_shown_with_a_caret() {
    let shown = bad("service S {\n  void f() [hint: perf_gaol = latency;]\n}").to_string();
    let expected = "\
error: unknown hint 'perf_gaol'
 --> a.thrift:2:19
  |
2 |   void f() [hint: perf_gaol = latency;]
  |                   ^^^^^^^^^
  |
  = help: did you mean 'perf_goal'?";
    assert_eq!(shown, expected);
}

#[test]
fn misspelt_annotations_are_told_if_they_are_meant_for_us() {
    let function = |annotations: &str| format!("service S {{\n  void f() ({annotations})\n}}");
    one(&function("perf_goal = \"latancy\""), 2, 25, &["did you mean 'latency'?"]);
    one(
        &function("hint.perf_gaol = \"latency\""),
        2,
        18,
        &["unknown hint 'perf_gaol'", "did you mean 'perf_goal'?"],
    );
    one(&function("c_hint.pooling = \"busy\""), 2, 20, &["did you mean 'polling'?"]);
    one(&function("c_hnt.polling = \"busy\""), 2, 13, &["did you mean 'c_hint.polling'?"]);
    one(&function("polling"), 2, 13, &["'polling' needs a value", "busy, event or adaptive"]);
    one(&function("s_hint.polling = \"busy\", s_hint.polling = \"event\""), 2, 38, &["said twice"]);
    one(
        "service S {\n  void f()\n} (\n  concurrency = \"many\"\n)",
        4,
        17,
        &["'many' is not a value of concurrency"],
    );
}

#[test]
fn hints_of_a_service_stand_before_its_functions() {
    one(
        "service S {\n  void f()\n  hint: polling = busy;\n}",
        3,
        3,
        &["before its functions", "move the group up"],
    );
    one(
        "service S {\n  hint: polling = busy\n  void f()\n}",
        3,
        3,
        &["expected ',' or ';'", "ends with ';'"],
    );
}

#[test]
fn contradictions_name_both_places() {
    one(
        "service S {\n  hint: transport = tcp;\n  void f() [hint: protocol = eager;]\n}",
        3,
        19,
        &["Eager-SendRecv needs the fabric", "a.thrift:2:9: transport = tcp"],
    );
    one(
        "service S {\n  void f() [hint: protocol = server_reply; s_hint: polling = event;]\n}",
        2,
        52,
        &["the server is to wait by event", "Server-reply", "a.thrift:2:19: protocol = Server-reply"],
    );
    one(
        "service S {\n  void f() [c_hint: transport = tcp; s_hint: transport = rdma;]\n}",
        2,
        21,
        &["a call has one transport", "a.thrift:2:46: transport = rdma"],
    );
    one(
        "service S {\n  void f() [c_hint: proto = eager; s_hint: proto = direct_write_imm;]\n}",
        2,
        21,
        &["a call has one protocol", "a.thrift:2:44"],
    );
    one(
        "service S {\n  void f() [hint: protocol = eager; c_hint: sharing = grouped;]\n}",
        2,
        45,
        &["sharing = grouped cannot run", "choose dedicated or combined"],
    );
    one(
        "service S {\n  hint: sharing = combined;\n  void f()\n  void g() [hint: sharing = dedicated;]\n}",
        4,
        19,
        &["g asks for sharing = dedicated and f for combined", "a.thrift:2:9: sharing = combined"],
    );
    // The service's hint stands behind its functions here, and the first function has one of its own.
    one(
        "service S {\n  void f() (sharing = \"dedicated\")\n  void g()\n} (sharing = \"combined\")",
        2,
        13,
        &["f asks for sharing = dedicated and g for combined"],
    );
    // Reported once for all functions.
    one("service S {\n  hint: transport = tcp, protocol = eager;\n  void f()\n  void g()\n}", 2, 26, &[]);
}

#[test]
fn what_is_only_odd_is_a_warning() {
    let load = |text: &str| {
        let memory = Memory::new().with("a.thrift", text);
        load_with("a.thrift", &Options::default(), &memory).unwrap_or_else(|e| panic!("{e}")).warnings
    };
    for (hints, words) in [
        (
            "hint: perf_goal = latency, transport = tcp;",
            &["out of reach", "transport = tcp", "a.thrift:2:40"][..],
        ),
        ("hint: polling = busy, transport = tcp;", &["polling means nothing"]),
        ("hint: transport = tcp; c_hint: sharing = combined;", &["sharing means nothing", "a.thrift:2:44"]),
        ("s_hint: sharing = combined;", &["the server's sharing has no effect", "a.thrift:2:21"]),
        (
            "hint: perf_goal = latency, polling = event;",
            &["costs a wake-up", "a.thrift:2:19: perf_goal = latency"],
        ),
    ] {
        let warnings = load(&format!("service S {{\n  void f() [{hints}]\n}}"));
        let shown = warnings.to_string();
        assert_eq!((warnings.iter().count(), warnings.errors()), (1, 0), "{shown}");
        for word in words {
            assert!(shown.contains(word), "'{word}' is missing in:\n{shown}");
        }
    }
    // A hint on a nearer level overrides intentionally.
    let text = "service S {\n  hint: perf_goal = latency;\n  oneway void f() [hint: transport = tcp;]\n}";
    assert!(load(text).is_empty());
    let nearly =
        load("service S {\n  void f() (prioritty = \"high\", deprecated = \"yes\", go.tag = \"x\")\n}");
    assert_eq!(nearly.iter().count(), 1, "{nearly}");
    assert!(nearly.to_string().contains("did you mean 'priority'?"), "{nearly}");
}

#[test]
fn the_lenient_are_warned_of_what_nobody_knows() {
    let text = "service S {\n  hint: perf_gaol = latency, polling = busy;\n  void f() (c_hint.polling = \"bussy\")\n}";
    let memory = Memory::new().with("a.thrift", text);
    let options = Options { lenience: Lenience::Lenient, ..Options::default() };
    let document = load_with("a.thrift", &options, &memory).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(document.warnings.iter().count(), 2, "{}", document.warnings);
    let client = document.services[0].functions[0].hints.client;
    assert_eq!(client, dunlin_idl::hints::Hints::NONE.polling(dunlin_idl::hints::CompletionMode::Busy));
    assert_eq!(bad(text).errors(), 2);
}

#[test]
fn wrong_thrift_is_told_where_it_is() {
    one("struct S {\n  1: i32 a\n  2 i32 b\n}", 3, 5, &["expected ':'", "found 'i32'"]);
    one("struct S {\n  i32 a\n}", 2, 3, &["unexpected 'i32'", "begins with its number"]);
    one("struct S {\n  1: i32\n}", 3, 1, &["found '}'"]);
    one("strct S {}", 1, 1, &["expected a definition", "did you mean 'struct'?"]);
    one("struct S {} stray", 1, 13, &["expected a definition, found 'stray'"]);
    one("service S {\n  void f(\n}", 3, 1, &["expected ')', found '}'", "a.thrift:2:9: '(' is opened here"]);
    one("service S {\n  void f()", 1, 11, &["'{' is not closed"]);
    one("struct S { } }", 1, 14, &["'}' closes nothing"]);
    one("const string s = \"abc", 1, 18, &["this text has no end"]);
    one("struct S {}\n/* never ends", 2, 1, &["this comment has no end"]);
    one("struct S { 1: i32 ä }", 1, 19, &["unexpected character 'ä'"]);
    one("struct S { 99999: i32 a }", 1, 12, &["field id does not fit"]);
    one("const i64 x = 99999999999999999999", 1, 15, &["integer constant does not fit"]);
    one("enum E { A = 4294967296 }", 1, 10, &["the number of 'A' does not fit in an i32"]);
    one(
        "service S {\n  void f(1: i32 a) throw (1: i32 b)\n}",
        2,
        20,
        &["found 'throw'", "did you mean 'throws'?"],
    );
    one("enum E { A = 10x10 }", 1, 14, &["'10x10' is neither a name nor a number"]);
    one("include nothing", 1, 9, &["a quoted text", "found 'nothing'"]);
}

#[test]
fn names_are_looked_up() {
    one(
        "struct Item {}\nstruct S { 1: Itme a }",
        2,
        15,
        &["there is no type 'Itme'", "did you mean 'Item'?"],
    );
    one("struct S { 1: strng a }", 1, 15, &["did you mean 'string'?"]);
    one("struct S { 1: map<string, list<Nope>> a }", 1, 32, &["there is no type 'Nope'"]);
    one("typedef Nope N", 1, 9, &["there is no type 'Nope'"]);
    one("service S { Nope f() }", 1, 13, &["there is no type 'Nope'"]);
    one("service S { void f(1: other.Item a) }", 1, 23, &["no included file is called 'other'"]);
    one("service S { void f() throws (1: i32 a) }", 1, 37, &["'a' is not an exception"]);
    one("struct X {}\nservice S { void f() throws (1: X a) }", 2, 35, &["'a' is not an exception"]);
    one("service S extends T {}\nservice TT {}", 1, 19, &["there is no service 'T'"]);
    one("service A {}\nstruct S { 1: A a }", 2, 15, &["'A' is a service and not a type"]);
    one("const i32 A = 1\nstruct S { 1: A a }", 2, 15, &["'A' is a constant and not a type"]);
    one("struct S { 1: void a }", 1, 15, &["'void' is only the result"]);
    one("service S { oneway i32 f() }", 1, 24, &["oneway, so its result must be void"]);
    one(
        "exception E {}\nservice S { oneway void f() throws (1: E e) }",
        2,
        29,
        &["oneway, so it cannot throw"],
    );
    one("typedef B A\ntypedef A B", 1, 11, &["is defined by itself"]);
}

#[test]
fn constants_are_looked_up() {
    one("const i32 A = B", 1, 15, &["there is no constant 'B'"]);
    one("enum E { X }\nconst E A = E.Y", 2, 13, &["there is no constant 'E.Y'", "^^^"]);
    one(
        "const map<i32, i32> A = {1: 2, 3: B}\nstruct S { 1: i32 a = A }",
        1,
        35,
        &["there is no constant 'B'"],
    );
    one("struct S { 1: list<i32> a = [1, other.B] }", 1, 33, &["there is no constant 'other.B'"]);
    one("service S { void f(1: i32 a = B, 2: i32 b) }", 1, 31, &["there is no constant 'B'"]);
    let good = "enum E { X, Y }\nconst E A = E.X\nconst list<E> B = [A, E.Y, X]\nstruct S { 1: E a = A, 2: bool b = true }";
    assert!(load_with("a.thrift", &Options::default(), &Memory::new().with("a.thrift", good)).is_ok());
    let root = "include \"b.thrift\"\nconst b.E A = b.E.X\nconst i32 B = b.N";
    let memory = Memory::new().with("a.thrift", root).with("b.thrift", "enum E { X }\nconst i32 N = 1");
    assert!(load_with("a.thrift", &Options::default(), &memory).is_ok());
}

#[test]
fn nothing_is_there_twice() {
    one("struct A {}\nenum A {}", 2, 6, &["'A' is there twice", "a.thrift:1:8: it is here first"]);
    one("struct A { 1: i32 a\n 1: i32 b }", 2, 2, &["'1' is there twice", "a.thrift:1:12"]);
    one("struct A { 1: i32 a\n 2: i32 a }", 2, 9, &["'a' is there twice", "a.thrift:1:19"]);
    one("enum A { X\n X }", 2, 2, &["'X' is there twice"]);
    one("service S { void f()\n void f() }", 2, 7, &["'f' is there twice"]);
    one("service S { void f(1: i32 a, 1: i32 b) }", 1, 30, &["'1' is there twice"]);
    one(
        "service A { void f() }\nservice B extends A {\n void f() }",
        3,
        7,
        &["'f' is inherited already", "a.thrift:1:18"],
    );
    one("service A extends A {}", 1, 19, &["circle"]);
    let all = bad("service A extends B {}\nservice B extends A {}");
    assert_eq!(all.errors(), 2, "{all}");
}

#[test]
fn all_errors_are_told_and_not_only_the_first() {
    let text = "struct A { 1: Nope a }\nstruct B { 2 i32 b }\nservice S {\n  hint: perf_gaol = latency;\n  void f() [hint: polling = bussy;]\n}\nstrct C {}\n";
    let all = bad(text);
    let lines: Vec<u32> = all.iter().map(|it| it.place.line).collect();
    assert_eq!(lines, [1, 2, 4, 5, 7], "{all}");
    let many: String = (0..500).map(|index| format!("struct A{index} {{ 1: Nope a }}\n")).collect();
    let all = bad(&many);
    assert_eq!((all.iter().count(), all.left_out()), (100, 400));
    assert!(all.to_string().ends_with("400 more are not shown"));
}

#[test]
fn includes_are_found_or_missed_with_the_folders() {
    let load = |memory: Memory, folders: &[&str]| {
        let include_folders = folders.iter().map(Into::into).collect();
        load_with("d/a.thrift", &Options { include_folders, ..Options::default() }, &memory)
    };
    let root = Memory::new().with("d/a.thrift", "include \"b.thrift\"\nstruct S { 1: b.T t }");
    let missed = load(root.clone(), &["x", "y"]).expect_err("missing").to_string();
    for word in ["there is no file 'b.thrift'", "d/a.thrift:1:9", "looked in: d, x, y"] {
        assert!(missed.contains(word), "{missed}");
    }
    let found = load(root.clone().with("y/b.thrift", "struct T {}"), &["x", "y"]).expect("found");
    assert_eq!(found.files[1].path.display().to_string(), "y/b.thrift");
    assert_eq!((found.files[1].name.as_str(), found.files[0].includes[0].file.0), ("b", 1));
    let circle = load(root.clone().with("d/b.thrift", "include \"../d/a.thrift\"\nstruct T {}"), &[])
        .expect_err("a circle");
    assert!(
        circle.to_string().contains("files include each other: a.thrift -> b.thrift -> a.thrift"),
        "{circle}"
    );
    assert_eq!(circle.iter().next().map(|it| it.place.to_string()).as_deref(), Some("d/b.thrift:1:9"));
    let inner = load(root.clone().with("d/b.thrift", "struct T { 1: Nope n }"), &[]).expect_err("an error");
    assert!(inner.to_string().contains("d/b.thrift:1:15"), "{inner}");
    let twins = root.with("d/b.thrift", "struct T {}").with("e/b.thrift", "struct T {}");
    let twins = twins.with("d/a.thrift", "include \"b.thrift\"\ninclude \"../e/b.thrift\"");
    assert!(
        load(twins, &[])
            .expect_err("two of a name")
            .to_string()
            .contains("two included files are called 'b'")
    );
}

#[test]
fn files_that_are_none_are_refused() {
    let missing = dunlin_idl::load("/nowhere/at/all.thrift", &[]).expect_err("missing").to_string();
    assert!(missing.contains("/nowhere/at/all.thrift:1:1") && missing.contains("cannot read"), "{missing}");
    let folder = dunlin_idl::load("/", &[]).expect_err("a folder").to_string();
    assert!(folder.contains("cannot read the file: it is no file"), "{folder}");
    one(&"x".repeat((4 << 20) + 1), 1, 1, &["more than 4194304 bytes"]);
    one(&format!("struct A {{}}\n// {}", "x".repeat(70_000)), 2, 1, &["the line has more than 65536 bytes"]);
    let bytes = load_with(
        "a.thrift",
        &Options::default(),
        &Memory::new().with("a.thrift", b"struct A {}\n \xff".to_vec()),
    );
    let error = bytes.expect_err("not UTF-8");
    assert_eq!(error.iter().next().map(|it| it.place.to_string()).as_deref(), Some("a.thrift:2:2"));
}

#[test]
fn nesting_is_bounded() {
    let deep =
        |depth: usize| format!("struct S {{ 1: {}i32{} a }}", "list<".repeat(depth), ">".repeat(depth));
    assert!(load_with("a.thrift", &Options::default(), &Memory::new().with("a.thrift", deep(60))).is_ok());
    one(&deep(100), 1, 334, &["nested more than 64 deep", "typedefs"]);
    one(&deep(100_000).replace("><", ">"), 1, 1, &["the line has more than"]);
    let lists = format!("const i32 a = {}{}", "[".repeat(1000), "]".repeat(1000));
    one(&lists, 1, 79, &["nested more than 64 deep"]);
    let open = "(".repeat(50_000);
    one(&open, 1, 65, &["nested more than 64 deep"]);
}

#[test]
fn what_multiplies_is_bounded() {
    let row = |count: usize| {
        let next = (1..count)
            .map(|index| format!("service S{index} extends S{} {{ void f{index}() }}\n", index - 1));
        format!("service S0 {{}}\n{}", next.collect::<String>())
    };
    assert!(load_with("a.thrift", &Options::default(), &Memory::new().with("a.thrift", row(65))).is_ok());
    one(&row(66), 66, 21, &["more than 64 services are extended"]);
    let functions: String = (0..5_000).map(|index| format!("void f{index}()\n")).collect();
    let services: String = (0..30).map(|index| format!("service S{index} extends S {{}}\n")).collect();
    one(&format!("service S {{{functions}}}\n{services}"), 5_021, 9, &["more than 100000 functions"]);
    let typedefs: String = (1..20_000).map(|index| format!("typedef T{} T{index}\n", index - 1)).collect();
    let text =
        format!("{typedefs}typedef E T0\nexception E {{}}\nservice S {{ void f() throws (1: T19999 e) }}");
    assert!(load_with("a.thrift", &Options::default(), &Memory::new().with("a.thrift", text)).is_ok());
}
