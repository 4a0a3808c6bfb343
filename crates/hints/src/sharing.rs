//! How the client's threads share connections: by the hint, else by the fabric and the number of clients. All
//! functions of a client use the same connections, so they agree on one value.

use crate::hints::FunctionHints;
use crate::key::{Key, Side};
use crate::select_error::SelectError;
use crate::selection::{ACTIVE_QUEUE_PAIRS, Because, Environment, Reason, Selection, Subject};
use crate::value::{Sharing, Value};

/// The sharing of a function by its own hints, and the reason.
#[derive(Debug)]
pub(crate) struct Chosen {
    pub(crate) sharing: Sharing,
    /// The hints that decided.
    pub(crate) hints: Vec<(Side, Key)>,
    pub(crate) text: String,
}

/// Chooses the sharing of a function. `clients` is the number of clients, and the hint that gave it.
pub(crate) fn choose(
    hints: &FunctionHints,
    environment: &Environment<'_>,
    clients: (u32, Option<(Side, Key)>),
) -> Chosen {
    if let Some(sharing) = hints.client.sharing {
        let text = format!("sharing = {}", Value::Sharing(sharing));
        return Chosen { sharing, hints: vec![(Side::Client, Key::Sharing)], text };
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
    let (limit, keeper) = match environment.active_queue_pairs {
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
    let text = format!(
        "{clients} client{plural}{has_each}, {relation} the {limit} queue pairs that {keeper}: {}",
        Value::Sharing(sharing)
    );
    Chosen { sharing, hints: hint.into_iter().collect(), text }
}

/// Gives all functions of a client one sharing, because they use the same connections. Each item is a function
/// with its own selection, as [`select`](crate::select) returns it.
///
/// The value of the functions with the hint `sharing` holds for all. Without such a hint, the functions share
/// connections if at least one of them selects it. Each changed selection has the reason. Functions by TCP take no
/// part.
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
            let sharing = Sharing::of(selection.plan.as_ref()?)?;
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
        None => functions.iter().find(|(.., sharing)| *sharing != Sharing::Dedicated),
    };
    let Some((_, hints, _, sharing)) = decider else { return Ok(()) };
    let sharing = *sharing;
    let text = format!(
        "the functions of a client use the same connections, so as '{}': {}",
        hints.name,
        Value::Sharing(sharing)
    );
    let is_hinted = hints.client.sharing.is_some();
    let because = is_hinted.then(|| Because { side: Side::Client, key: Key::Sharing, place: place(hints) });
    for (_, _, selection, own) in &mut functions {
        if *own != sharing {
            selection.plan = selection.plan.map(|plan| sharing.on(plan));
            let hints = because.iter().cloned().collect();
            selection.reasons.push(Reason { subject: Subject::Sharing, text: text.clone(), hints });
        }
    }
    Ok(())
}
