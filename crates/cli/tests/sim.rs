//! `dunlin sim`: figures, sweeps and calibration, as a user sees them.

mod support;

use support::{Folder, dunlin};

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
