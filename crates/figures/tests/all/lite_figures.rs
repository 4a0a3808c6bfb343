//! LITE's predicted figures in their quick form.

use crate::figures::says;

#[test]
fn lite_4() {
    says("lite-4-tier", &[("native, over that with 1 region", 2), ("the tier, over that with 1 region", 2)]);
}

#[test]
fn lite_5() {
    says(
        "lite-5-tier",
        &[
            ("native 64 B, over that in 1 MB", 2),
            ("the tier 64 B, 2 MiB, over that in 1 MB", 2),
            ("the tier 64 B, 1 GiB, over that in 1 MB", 2),
            ("the tier 64 B, physical, over that in 1 MB", 2),
            ("native 1024 B, over that in 1 MB", 2),
            ("the tier 1024 B, 2 MiB, over that in 1 MB", 2),
            ("the tier 1024 B, 1 GiB, over that in 1 MB", 2),
            ("the tier 1024 B, physical, over that in 1 MB", 2),
            ("the tier 1024 B, pieces of 4 MiB over one of 128 MB", 1),
            ("the tier 1048576 B, pieces of 4 MiB over one of 128 MB", 1),
        ],
    );
}

#[test]
fn lite_6_and_7() {
    says(
        "lite-6",
        &[
            ("the tier over WRITE", 3),
            ("LITE, kernel over WRITE", 3),
            ("LITE, user over WRITE", 3),
            ("the tier, through the node: longer than in one process", 3),
            ("TCP/IP over WRITE", 3),
        ],
    );
    says(
        "lite-7",
        &[
            ("the tier over WRITE", 3),
            ("the tier, 8 threads over WRITE, 8 threads", 3),
            ("the tier, through the node, 8 threads over WRITE, 8 threads", 3),
            ("LITE, kernel, 8 threads over WRITE, 8 threads", 3),
            ("LITE, user, 8 threads over WRITE, 8 threads", 3),
            ("TCP/IP over WRITE", 3),
        ],
    );
}

#[test]
fn lite_8() {
    says(
        "lite-8",
        &[
            ("malloc over register", 2),
            ("map over register", 2),
            ("free over deregister", 2),
            ("growth of malloc over that of register", 1),
            ("growth of map over that of register", 1),
            ("growth of free over that of deregister", 1),
        ],
    );
}

#[test]
fn lite_14() {
    says(
        "lite-14",
        &[
            ("the tier, K = 1, over that of two nodes", 1),
            ("the tier, K = 2, over that of two nodes", 1),
            ("the tier, K = 3, over that of two nodes", 1),
            ("the tier, K = 4, over that of two nodes", 1),
            ("the tier, K = 8, over that of two nodes", 1),
        ],
    );
}

#[test]
fn lite_10_and_11() {
    says(
        "lite-10",
        &[
            ("LITE, user over two WRITEs", 2),
            ("the tier, in one process over two WRITEs", 2),
            ("HERD over LITE, user", 2),
            ("FaSST over LITE, user", 1),
        ],
    );
    says(
        "lite-11",
        &[
            ("the tier, in one process, 1 and 1 over FaSST, 1 and 1", 2),
            ("the tier, in one process, 16 and 16 over FaSST, 16 and 16", 2),
        ],
    );
    says("lite-14-calls", &[("the tier, each node, over that of two", 1)]);
}

#[test]
fn lite_15() {
    says(
        "lite-15",
        &[
            ("log, SW-Pri over HW-Sep", 1),
            ("graph, SW-Pri over HW-Sep", 1),
            ("HW-Sep over no QoS, log over graph", 1),
            ("SW-Pri over no QoS, log over graph", 1),
        ],
    );
}

#[test]
fn lite_16() {
    says(
        "lite-16",
        &[
            ("no QoS, high over all", 1),
            ("SW-Pri, all over no QoS", 5),
            ("SW-Pri, high over no QoS", 2),
            ("HW-Sep, all over the least other", 3),
            ("HW-Sep, high over SW-Pri", 2),
        ],
    );
}

#[test]
fn lite_lock() {
    says(
        "lite-lock",
        &[
            ("a free lock", 1),
            ("from grant to grant, a node for each thread up to 8, over that of 2 threads", 1),
        ],
    );
}

#[test]
fn lite_graph() {
    says(
        "lite-graph",
        &[
            ("sockets over the tier", 2),
            ("shared memory over the tier, over the tier", 2),
            ("shared memory, with faults, over the tier", 2),
            ("sockets, over shared memory over the tier", 2),
        ],
    );
}

/// The paper says nothing of failures. The time of the next view is that of the lease, a fifth of it for a report, and some
/// more.
#[test]
fn lite_membership() {
    says("lite-membership", &[]);
}

#[test]
fn lite_log() {
    says(
        "lite-log",
        &[
            ("2 nodes", 1),
            ("4 nodes over 2", 2),
            ("8 nodes over 2", 2),
            ("bytes, 16 entries over 1", 2),
            ("bytes, 64 entries over 1", 2),
        ],
    );
}

#[test]
fn lite_17() {
    says("lite-17", &[("memset by WRITE over memset", 2)]);
}

#[test]
fn lite_dsm() {
    says(
        "lite-dsm",
        &[
            ("read of a page by chance, with faults", 1),
            ("read of a page in sequence, with faults", 1),
            ("acquire 10 pages, with faults", 1),
            ("release 10 pages, with faults", 1),
        ],
    );
}

#[test]
fn lite_12() {
    says(
        "lite-12",
        &[
            ("LITE, keys over SEND", 4),
            ("the tier, keys over SEND", 4),
            ("LITE, values over SEND", 4),
            ("the tier, values over SEND", 4),
        ],
    );
}

#[test]
fn lite_13() {
    says("lite-13", &[("the tier, in one process over HERD", 2), ("the tier, in one process over FaSST", 2)]);
    says(
        "lite-13-light",
        &[("the tier, in one process over HERD", 1), ("the tier, in one process over FaSST", 1)],
    );
}

#[test]
fn lite_hosts() {
    says(
        "lite-hosts",
        &[("through the node, over pairs", 1), ("through the node, four workers, over pairs", 1)],
    );
}

#[test]
fn lite_processes() {
    says(
        "lite-processes",
        &[
            ("16 processes of 8 threads over one process of 128 threads", 2),
            ("2 x N x T queue pairs, over that of 2 nodes", 1),
        ],
    );
    says("lite-steps", &[("64 B, wait over one step", 1), ("64 B, steps of 64 KiB, wait over one step", 1)]);
}
