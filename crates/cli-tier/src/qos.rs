//! The options of `dunlin node run` about quality of service.

use clap::Args;
use dunlin_command::arguments;
use dunlin_tier_node::{Policy, Priority, QosConfig, Share};

/// The name of the share of all principals that no other one names.
const EVERYONE: &str = "*";

/// Shares of the node among principals and priorities.
#[derive(Args, Debug)]
pub(crate) struct QosArguments {
    /// Rule by which operations share the paths: shares (by weight), paced (LITE's SW-Pri), reserved=N (HW-Sep: N paths
    /// for low priority), arrival (none)
    #[arg(long, default_value = "shares", value_parser = policy, value_name = "RULE")]
    qos: Policy,
    /// Share of a principal, or of all others (*): WEIGHT[,low][,ops=N][,bytes=SIZE], the last two a second; may be
    /// repeated
    #[arg(long, value_parser = share, value_name = "PRINCIPAL=SHARE")]
    share: Vec<(String, Share)>,
}

fn policy(text: &str) -> Result<Policy, String> {
    match text.split_once('=').unwrap_or((text, "")) {
        ("shares", "") => Ok(Policy::Shares),
        ("paced", "") => Ok(Policy::Paced),
        ("arrival", "") => Ok(Policy::Arrival),
        ("reserved", low) => {
            let low =
                low.parse().map_err(|_| format!("'{text}': write reserved=N, of the paths of --paths"))?;
            Ok(Policy::Reserved { low })
        }
        _ => Err(format!("'{text}' is no rule: use shares, paced, reserved=N or arrival")),
    }
}

fn share(text: &str) -> Result<(String, Share), String> {
    let wrong = |what: &str| {
        format!("{what} in '{text}'; write for example alice=4 or bob=1,low,ops=1000,bytes=100MiB")
    };
    let (name, words) = text.split_once('=').ok_or_else(|| wrong("no '='"))?;
    if name.is_empty() {
        return Err(wrong("no principal"));
    }
    let mut words = words.split(',');
    let weight = words.next().and_then(|weight| weight.parse().ok()).ok_or_else(|| wrong("no weight"))?;
    let mut share = Share { weight, ..Share::default() };
    for word in words {
        match word.split_once('=') {
            None if word == "low" => share.priority = Priority::Low,
            Some(("ops", number)) => {
                share.limit.operations = number.parse().map_err(|_| wrong("no number of operations"))?;
            }
            Some(("bytes", size)) => share.limit.bytes = arguments::size(size)?,
            _ => return Err(wrong(&format!("'{word}' is not understood"))),
        }
    }
    Ok((name.to_owned(), share))
}

impl QosArguments {
    /// Returns the settings. A share that is given twice counts as the last one.
    pub(crate) fn config(&self) -> QosConfig {
        let mut config = QosConfig { policy: self.qos, ..QosConfig::default() };
        for (name, share) in &self.share {
            match name.as_str() {
                EVERYONE => config.everyone = *share,
                name => drop(config.principals.insert(name.to_owned(), *share)),
            }
        }
        config
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dunlin_tier_node::Limit;

    #[test]
    fn shares_are_understood() {
        let of = |text| share(text).unwrap();
        let plain = Share { weight: 4, ..Share::default() };
        assert_eq!(of("alice=4"), ("alice".to_owned(), plain));
        let limit = Limit { operations: 1000, bytes: 100 << 20 };
        let low = Share { weight: 1, priority: Priority::Low, limit };
        assert_eq!(of("*=1,low,ops=1000,bytes=100MiB"), ("*".to_owned(), low));
        for wrong in ["alice", "=1", "alice=", "alice=x", "alice=1,high", "alice=1,ops=x", "alice=1,bytes=x"]
        {
            share(wrong).expect_err(wrong);
        }
        assert_eq!(policy("reserved=2"), Ok(Policy::Reserved { low: 2 }));
        for wrong in ["reserved", "reserved=x", "fair", "paced=1"] {
            policy(wrong).expect_err(wrong);
        }
    }
}
