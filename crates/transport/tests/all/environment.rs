//! Environment variables supply the RDMA settings that a program leaves open, however it opens the fabric.

use dunlin_fabric::{Address, WithSources};
use dunlin_fabric_rdma::OpenError;
use dunlin_transport::Fabrics;
use std::process::Command;

/// Marks a child process of this test program, which prints its findings.
const CHILD: &str = "DUNLIN_TEST_ENVIRONMENT_CHILD";

#[test]
fn fabrics_go_by_the_environment() {
    if std::env::var_os(CHILD).is_some() {
        let fabrics = Fabrics::default();
        let error = fabrics.rdma().expect_err("the variable is wrong");
        assert!(matches!(error, OpenError::Setting(_)), "{error}");
        let address: Address = "rdma:127.0.0.1:1".parse().expect("an address");
        println!("said: {}", WithSources(&fabrics.choose(&address).expect_err("the same")));
        // Only RDMA uses the variable.
        fabrics.shm().expect("shared memory");
        return;
    }
    for (name, value) in
        [("DUNLIN_RDMA_RETRIES", "8"), ("DUNLIN_RDMA_PORT", "one"), ("DUNLIN_RDMA_MTU", "all")]
    {
        let output = Command::new(std::env::current_exe().expect("our program"))
            .args(["--exact", "environment::fabrics_go_by_the_environment", "--nocapture"])
            .envs([(CHILD, "1"), (name, value)])
            .output()
            .expect("it starts");
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
        assert!(text.contains(&format!("{name}={value} cannot be used")), "{text}");
    }
}
