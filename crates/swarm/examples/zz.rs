use dunlin_swarm::play_membership;
fn main() {
    let seeds: Vec<u64> = std::env::args().skip(1).filter_map(|text| text.parse().ok()).collect();
    let history = std::env::var("HISTORY").is_ok();
    for seed in seeds {
        let outcome = play_membership(seed, None);
        println!("{seed} {:?}", outcome.failure.map(|failure| failure.to_string()));
        let _ = history;
    }
}
