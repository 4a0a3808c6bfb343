//! `dunlin node ls` and `dunlin tier ls`: lists regions with a name.

use clap::Args;
use dunlin_command::attach::AttachArguments;
use dunlin_command::output::{self, Failure};
use dunlin_report::{Row, Unit, table};
use dunlin_tier_client::{Listed, RequestError, Tier};
use std::process::ExitCode;

const AFTER_HELP: &str = "\
Regions to which your principal has no right are not listed. 'dunlin node ls' lists the regions that were made at this
host's node, 'dunlin tier ls' those of all nodes. With a NAME, the exit status is 1 if there is no such region.

Examples:
  dunlin tier ls
  dunlin tier ls graph/7
  dunlin node ls";

/// List regions that have a name.
#[derive(Args, Debug)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct ListArguments {
    /// Only the region of this name
    name: Option<String>,
    #[command(flatten)]
    attach: AttachArguments,
}

/// Returns all regions that were made at a node.
fn of_node(tier: &Tier, node: &str) -> Result<Vec<Listed>, RequestError> {
    let (mut regions, mut from) = (Vec::new(), Some(0));
    while let Some(at) = from {
        let part = tier.list(node, at)?;
        regions.extend(part.regions);
        from = part.next;
    }
    Ok(regions)
}

pub(crate) fn run(arguments: &ListArguments, only_own: bool) -> Result<ExitCode, Failure> {
    let tier = arguments.attach.attach()?;
    let own = tier.node().to_owned();
    let nodes = if only_own { vec![own.clone()] } else { tier.status().map_err(Failure::new)?.nodes };
    let (mut rows, mut missing) = (Vec::new(), false);
    for node in nodes {
        let mut regions = match of_node(&tier, &node) {
            Ok(regions) => regions,
            Err(error) if node == own => return Err(Failure::new(error)),
            Err(error) => {
                missing = true;
                output::note(format_args!("warning: regions of {node} are not listed: {error}"));
                continue;
            }
        };
        regions
            .retain(|one| arguments.name.as_ref().is_none_or(|name| one.name.as_bytes() == name.as_bytes()));
        regions.sort_by(|one, other| one.name.cmp(&other.name));
        rows.extend(regions.iter().map(|one| {
            Row::new()
                .with("name", one.name.to_string())
                .with("size", Unit::Bytes.format(one.length as f64))
                .with("rights", one.rights.to_string())
                .with("made_at", node.as_str())
        }));
    }
    if rows.is_empty() && (arguments.name.is_some() || missing) {
        return Err(Failure::Negative);
    }
    output::print(table(&rows))?;
    Ok(ExitCode::SUCCESS)
}
