//! `dunlin sim`: figures, sweeps and calibration, from the user's view.

use dunlin_command_testing::{Folder, Running, dunlin};

const HEAD: &str = "cluster,nic_from_memory,machines,threads_per_machine,vms,qps_per_nic,op,size_B,window,unsig_batch,allsig,mops_per_machine,source_file";
const APT: &str = "apt,ConnectX-3,6,8,1,48,READ_RC,8,8,1,1,10.58,a-log";
const NETAPP: &str = "netapp,Connect-IB,6,2,1,12,WRITE_RC_inline,32,8,4,1,9.44,another-log";

fn json(path: &str) -> serde_json::Value {
    serde_json::from_slice(&std::fs::read(path).expect("written")).expect("JSON")
}

#[test]
fn figures_are_listed_and_run() {
    let list = dunlin(["sim", "list"]).well().text();
    for id in [
        "rf-rpc-1",
        "rf-rpc-2.4",
        "scalerpc-1b",
        "scalerpc-3a",
        "scalerpc-3b",
        "flock-2a",
        "lite-4",
        "lite-5",
    ] {
        assert!(
            list.lines().any(|line| line.starts_with(id) && line.contains("calibrated")),
            "{id}:\n{list}"
        );
    }
    let folder = Folder::new("sim-figure");
    let (path, plot) = (folder.file("figure.json"), folder.file("figure.svg"));
    let text = dunlin(["sim", "figure", "rf-rpc-2.4", "--json", &path, "--plot", &plot]).well().text();
    assert!(text.contains("predicted") && text.contains("paper"), "{text}");
    let document = json(&path);
    assert_eq!(document["name"], "sim figure");
    assert_eq!(document["parameters"]["profile_hash"].as_str().map(str::len), Some(16));
    let rows = document["rows"].as_array().expect("rows");
    assert_eq!(rows.len(), 7);
    for row in rows {
        assert!(
            row["predicted"].as_f64().is_some_and(|value| value > 0.0) && row["kind"] == "calibrated",
            "{row}"
        );
    }
    assert_eq!(rows[0]["paper"], 1.12);
    assert!(std::fs::read_to_string(&plot).expect("written").contains("WRITE, paper"));
}

#[test]
fn an_unknown_figure_gets_the_nearest_name() {
    dunlin(["sim", "figure", "scalerpc-1a"]).failed(1, &["did you mean 'scalerpc-1b'", "sim list"]);
}

#[test]
fn predicted_figures_are_listed_and_run_by_the_same_command() {
    let list = dunlin(["sim", "list"]).well().text();
    for id in ["flock-2b", "hatrpc-4", "hatrpc-5-512", "hatrpc-5-128k", "rf-rpc-5", "rf-rpc-7", "rf-rpc-9"] {
        let named = |line: &str| line.starts_with(id) && line.contains("predicted");
        assert!(list.lines().any(named), "{id}:\n{list}");
    }
    for (id, alias) in [("rf-rpc-11", "rf-rpc-12"), ("rf-rpc-13", "rf-rpc-14")] {
        assert!(list.lines().any(|line| line.starts_with(id) && line.contains(alias)), "{alias}:\n{list}");
    }
    let folder = Folder::new("sim-predicted");
    let (path, plot) = (folder.file("figure.json"), folder.file("figure.svg"));
    let text =
        dunlin(["sim", "figure", "rf-rpc-9", "--quick", "--json", &path, "--plot", &plot]).well().text();
    assert!(text.contains("0.9 to 1.1") && text.contains("Jakiro over ServerReply"), "{text}");
    let document = json(&path);
    assert_eq!(document["parameters"]["kind"], "predicted");
    let rows = document["rows"].as_array().expect("rows");
    assert!(rows.iter().all(|row| row["kind"] == "predicted" && row["predicted"].is_number()), "{rows:?}");
    assert!(rows.iter().any(|row| row["holds"].is_boolean() && row["error_percent"].is_number()), "{rows:?}");
    assert!(std::fs::read_to_string(&plot).expect("written").contains("ServerReply"));
    dunlin(["sim", "figure", "hatrpc-44"]).failed(1, &["did you mean 'hatrpc-4'", "sim list"]);
}

#[test]
fn a_report_is_one_page_of_all_that_was_asked_for() {
    let folder = Folder::new("sim-report");
    let (page, summary, path) =
        (folder.file("report.html"), folder.file("summary.md"), folder.file("report.json"));
    let figures = ["--figure", "rf-rpc-2.4", "flock-2b"];
    let files = ["--output", &page, "--markdown", &summary, "--json", &path];
    let arguments = ["sim", "report", "--quick"].into_iter().chain(figures).chain(files);
    let text = dunlin(arguments.collect::<Vec<_>>()).well().text();
    assert!(text.contains("calibrated") && text.contains("predicted"), "{text}");
    let html = std::fs::read_to_string(&page).expect("written");
    for part in ["id=\"rf-rpc-2.4\"", "id=\"flock-2b\"", "<h2>Summary</h2>", "at least 90", "</html>"] {
        assert!(html.contains(part), "{part}");
    }
    assert_eq!((html.matches("<h2").count(), html.matches("<svg").count()), (3, 2));
    // The page is self-contained, and well-formed as far as this test can check.
    assert!(!html.contains("src=") && !html.contains("href=") && !html.contains("<?xml"));
    for tag in ["table", "tr", "td", "svg", "h2", "p"] {
        let opened = html.matches(&format!("<{tag}>")).count() + html.matches(&format!("<{tag} ")).count();
        assert_eq!(opened, html.matches(&format!("</{tag}>")).count(), "{tag}");
    }
    let summary = std::fs::read_to_string(&summary).expect("written");
    assert!(summary.starts_with("| figure | kind |") && summary.lines().count() == 5, "{summary}");
    assert!(json(&path)["rows"].as_array().is_some_and(|rows| rows.len() > 7));
    let left = std::fs::read_dir(std::path::Path::new(&page).parent().expect("a folder")).expect("read");
    assert_eq!(left.count(), 3, "no temporary file stays");

    dunlin(["sim", "report", "--quick", "--figure", "lite-17", "--output", &page]).well();
    let html = std::fs::read_to_string(&page).expect("written");
    for part in ["id=\"lite-17\"", "id=\"lite-20\"", "lines that call the tier", "graph on shared memory"] {
        assert!(html.contains(part), "{part}");
    }

    dunlin(["sim", "report", "--figure", "rf-rpc-100"]).failed(1, &["did you mean 'rf-rpc-10'"]);
    dunlin(["sim", "report", "--output", "/nowhere/at/all.html"]).failed(1, &["cannot write"]);
}

#[test]
fn an_interrupted_report_leaves_nothing() {
    let folder = Folder::new("sim-interrupted");
    let page = folder.file("report.html");
    let running = Running::start(["sim", "report", "--output", &page]);
    // When its simulations run, its signal handlers are installed.
    let threads = format!("/proc/{}/task", running.id());
    while std::fs::read_dir(&threads).expect("it runs").count() < 2 {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    running.signal("INT");
    assert_eq!(running.end().code(), Some(130));
    let folder = std::path::Path::new(&page).parent().expect("a folder");
    assert_eq!(std::fs::read_dir(folder).expect("read").count(), 0);
}

#[test]
fn the_simulator_is_measured_beside_a_bare_one() {
    let folder = Folder::new("sim-bench");
    let path = folder.file("out.json");
    let fixed = ["--network", "bare,rates", "--clients", "8,80", "--calls", "4000", "--rounds", "2"];
    let text = dunlin(["sim", "bench", "--json", &path].into_iter().chain(fixed)).well().text();
    assert!(text.contains("bare"), "{text}");
    let document = json(&path);
    let rows = document["rows"].as_array().expect("rows");
    assert_eq!(rows.len(), 4);
    for row in rows {
        let (share, bare) = (row["share_of_bare_ratio"].as_f64().expect("a share"), row["network"] == "bare");
        assert!(row["simulated_calls_ops"].as_f64().expect("a speed") > 0.0, "{row}");
        assert_eq!(share == 1.0, bare, "{row}");
        assert_eq!(row["events_per_call"] == 4.0, bare, "{row}");
        assert_eq!(row["memory_bytes_per_client"].is_null(), bare, "{row}");
    }
    dunlin(["sim", "bench", "--network", "no-such-profile", "--calls", "10"]).failed(1, &["no-such-profile"]);
}

#[test]
fn what_cannot_be_played_or_measured_is_told_first() {
    dunlin(["sim", "swarm", "--seeds", "0"]).failed(2, &["--seeds"]);
    dunlin(["sim", "swarm", "--first-seed", "9223372036854775808"]).failed(1, &["2^63", "--first-seed"]);
    dunlin(["sim", "bench", "--network", "bare,rats"])
        .failed(1, &["no profile 'rats'", "--network takes bare and rates"]);
    dunlin(["sim", "bench", "--network", "rates", "--clients", "70000", "--calls", "1"])
        .failed(1, &["at most 60000 clients fit"]);
}

#[test]
fn a_sweep_tells_measured_predicted_and_error() {
    let folder = Folder::new("sim-sweep");
    let (file, path, plot) = (folder.file("in.csv"), folder.file("out.json"), folder.file("out.svg"));
    std::fs::write(&file, format!("{HEAD}\n{APT}\n{NETAPP}\n")).expect("written");
    let text = dunlin(["sim", "sweep", &file, "--json", &path, "--plot", &plot]).well().text();
    assert!(text.contains("median"), "{text}");
    let document = json(&path);
    let rows = document["rows"].as_array().expect("rows");
    assert_eq!(rows.len(), 2);
    assert_eq!((&rows[0]["profile"], &rows[1]["profile"]), (&"apt".into(), &"connect-ib".into()));
    for row in rows {
        let (measured, predicted) = (row["measured_mops"].as_f64(), row["predicted_mops"].as_f64());
        let error = (predicted.expect("a number") / measured.expect("a number") - 1.0) * 100.0;
        assert!((error - row["error_percent"].as_f64().expect("a number")).abs() < 0.1, "{row}");
    }
    assert_eq!(document["parameters"]["medians"].as_array().map(Vec::len), Some(4));
    assert!(std::fs::metadata(&plot).is_ok());

    let text = dunlin(["sim", "sweep", &file, "--profile", "connect-ib", "--json", &path]).well().text();
    assert!(text.contains("1 rows of other clusters left out"), "{text}");
    assert_eq!(json(&path)["rows"].as_array().map(Vec::len), Some(1));
    dunlin(["sim", "sweep", &file, "--profile", "scalerpc", "--json", &path]).well();
    assert_eq!(
        json(&path)["rows"].as_array().map(Vec::len),
        Some(2),
        "a profile that no row has is tried on all"
    );
}

#[test]
fn a_bad_sweep_is_told_with_its_line() {
    let folder = Folder::new("sim-bad-sweep");
    let file = folder.file("in.csv");
    std::fs::write(&file, format!("{HEAD}\n{APT}\n{}\n", APT.replace("apt", "atp"))).expect("written");
    dunlin(["sim", "sweep", &file]).failed(1, &[":3:", "unknown cluster 'atp'"]);
    std::fs::write(&file, format!("{HEAD}\n{APT}\n")).expect("written");
    dunlin(["sim", "sweep", &file, "--profile", "aptt"]).failed(1, &["did you mean 'apt'"]);
    dunlin(["sim", "sweep", "/nowhere/in.csv"]).failed(1, &["cannot read"]);
}

#[test]
fn residuals_are_told_for_each_curve() {
    let folder = Folder::new("sim-calibrate");
    let path = folder.file("out.json");
    let text = dunlin(["sim", "calibrate", "flock", "--check", "--json", &path]).well().text();
    assert!(text.contains("flock-2a"), "{text}");
    assert_eq!(json(&path)["rows"][0]["stage"], "as it is");
    dunlin(["sim", "calibrate", "rf-rpc-connectx4", "--check"])
        .failed(1, &["no raw-verb curve of ConnectX-4"]);
}

#[test]
fn profiles_are_listed_by_nic() {
    let text = dunlin(["sim", "profiles"]).well().text();
    let line = |name: &str| text.lines().position(|line| line.split_whitespace().any(|word| word == name));
    for name in ["hatrpc", "rf-rpc", "connect-ib", "flock", "apt"] {
        assert!(line(name).is_some(), "{name} is missing in:\n{text}");
    }
    let rows: serde_json::Value =
        serde_json::from_str(&dunlin(["sim", "profiles", "--json"]).well().text()).expect("JSON");
    let nics: Vec<_> = rows.as_array().expect("rows").iter().map(|row| row["nic"].to_string()).collect();
    assert!(nics.is_sorted() && nics.len() >= 10, "{nics:?}");
}
