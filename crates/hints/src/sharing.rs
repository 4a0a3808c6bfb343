//! How the client's threads share connections: by the hint, else by the fabric and the number of clients. All
//! functions of a client use the same connections, so they agree on one value.

use crate::hints::FunctionHints;
use crate::key::{Key, Side};
use crate::select_error::SelectError;
use crate::selection::{ACTIVE_QUEUE_PAIRS, Because, Environment, Reason, Selection, Subject};
use crate::value::{Sharing, Value};
use dunlin_rpc::Plan;

/// The sharing of a function by its own hints, and the reason.
#[derive(Debug)]
pub(crate) struct Chosen {
    pub(crate) sharing: Sharing,
    /// The hints that decided.
    pub(crate) hints: Vec<(Side, Key)>,
    pub(crate) text: String,
}

/// Chooses the sharing of a function whose plan is otherwise known. `clients` is the number of clients, and the hint that
/// gave it. `wants_latency` if its goal is latency: its connections take no turns unless a hint says so.
pub(crate) fn choose(
    hints: &FunctionHints,
    environment: &Environment<'_>,
    clients: (u32, Option<(Side, Key)>),
    plan: &Plan,
    wants_latency: bool,
) -> Chosen {
    if let Some(sharing) = hints.client.sharing {
        let text = format!("sharing = {}", Value::Sharing(sharing));
        return Chosen { sharing, hints: vec![(Side::Client, Key::Sharing)], text };
    }
    if environment.through_node == Some(true) {
        let text = "a node: address, so the processes of this host share the connections of their node: tier";
        return Chosen { sharing: Sharing::Tier, hints: Vec::new(), text: text.to_owned() };
    }
    let capabilities = environment.capabilities;
    if capabilities.initiator_copies {
        let text = format!(
            "on {} the sender's processor copies, so shared connections spare no NIC: dedicated",
            capabilities.name
        );
        return Chosen { sharing: Sharing::Dedicated, hints: Vec::new(), text };
    }
    let (clients, hint) = clients;
    let plural = if clients == 1 { "" } else { "s" };
    let connections = environment.connections;
    let (limit, keeper) = match connections.active_queue_pairs {
        Some(limit) => (limit, "the server keeps active"),
        None => (ACTIVE_QUEUE_PAIRS, "a server keeps active by default"),
    };
    let each = environment.queue_pairs_each.max(1);
    let has_each = if each > 1 { format!(" with {each} queue pairs each") } else { String::new() };
    let (sharing, relation) = if clients.saturating_mul(each) > limit {
        (Sharing::Combined, "more than")
    } else {
        (Sharing::Dedicated, "not more than")
    };
    let counted =
        format!("{clients} client{plural}{has_each}, {relation} the {limit} queue pairs that {keeper}");
    let (sharing, grouped) = match connections.open.filter(|open| open.saturating_mul(each) > limit) {
        None => (sharing, String::new()),
        Some(open) => take_turns(sharing, open, environment, plan, wants_latency),
    };
    // The processes of a host cannot combine; their node can.
    let tier = match relation {
        "more than" => "; if they are many processes of few hosts, sharing = tier shares among these, too",
        _ => "",
    };
    let text = format!("{counted}{grouped}: {}{tier}", Value::Sharing(sharing));
    Chosen { sharing, hints: hint.into_iter().collect(), text }
}

/// Returns the sharing of a client whose server has `open` connections, more than it keeps active, and the reason.
/// Threads that share connections do not make them fewer, so connections take turns where the plan permits it.
fn take_turns(
    sharing: Sharing,
    open: u32,
    environment: &Environment<'_>,
    plan: &Plan,
    wants_latency: bool,
) -> (Sharing, String) {
    let taken = sharing.grouped();
    let why_not = match taken.on(*plan).check(environment.capabilities) {
        _ if wants_latency => "perf_goal = latency keeps a connection ready".to_owned(),
        Err(illegal) => illegal.to_string(),
        Ok(()) => return (taken, format!("; it has {open} connections, which take turns")),
    };
    (sharing, format!("; it has {open} connections, and this one takes no turns ({why_not})"))
}

/// Gives all functions of a client one sharing, because they use the same connections. Each item is a function
/// with its own selection, as [`select`](crate::select) returns it.
///
/// The value of the functions with the hint `sharing` holds for all. Without such a hint, the functions share
/// connections if at least one of them selects it, and each has its own lease. Each changed selection has the reason.
/// Functions by TCP take no part.
///
/// # Errors
/// Two functions hint different values: the index of the second one, and the error with both.
pub fn unify_sharing<'a>(
    functions: impl IntoIterator<Item = (&'a FunctionHints, &'a mut Selection)>,
) -> Result<(), (usize, Box<SelectError>)> {
    let mut functions: Vec<_> = functions
        .into_iter()
        .enumerate()
        .filter_map(|(number, (hints, selection))| {
            let of_plan = Sharing::of(selection.plan.as_ref()?)?;
            // A plan does not tell that its connection leads to a node.
            let sharing = hints.client.sharing.filter(|hinted| *hinted == Sharing::Tier).unwrap_or(of_plan);
            Some((number, hints, selection, sharing))
        })
        .collect();
    let place = |hints: &FunctionHints| hints.place(Side::Client, Key::Sharing).cloned();
    let mut hinted = functions.iter().filter(|(_, hints, ..)| hints.client.sharing.is_some());
    let decider = match hinted.next() {
        Some(first) => {
            if let Some(second) = hinted.find(|second| second.3 != first.3) {
                let error = SelectError::FunctionsDiffer {
                    first: first.1.name.clone().into_owned(),
                    first_sharing: first.3,
                    first_place: place(first.1),
                    second: second.1.name.clone().into_owned(),
                    second_sharing: second.3,
                    second_place: place(second.1),
                };
                return Err((second.0, Box::new(error)));
            }
            Some(first)
        }
        None => functions.iter().find(|(.., sharing)| sharing.is_combined()),
    };
    let Some((_, hints, _, decided)) = decider else { return Ok(()) };
    let decided = *decided;
    let name = hints.name.clone();
    let is_hinted = hints.client.sharing.is_some();
    let because = is_hinted.then(|| Because { side: Side::Client, key: Key::Sharing, place: place(hints) });
    for (_, _, selection, own) in &mut functions {
        let sharing = if is_hinted { decided } else { own.combined() };
        if *own != sharing {
            let text = format!(
                "the functions of a client use the same connections, so as '{name}': {}",
                Value::Sharing(sharing)
            );
            selection.plan = selection.plan.map(|plan| sharing.on(plan));
            let hints = because.iter().cloned().collect();
            selection.reasons.push(Reason { subject: Subject::Sharing, text, hints });
        }
    }
    Ok(())
}
