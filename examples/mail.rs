//! A service whose functions have different needs: small letters in, large deliveries out, and a oneway
//! notification. Each function uses its own plan.
//!
//! `cargo run --release --example mail`

use dunlin::thrift::{Failure, Never};
use dunlin::{ClientOptions, Context, ServerOptions, serve_with};
use dunlin_examples::mail::{
    Letter, Mail, MailClient, MailDeliverException, MailError, MailPostException, MailProcessor, NoMailbox,
};
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

#[derive(Default)]
struct Office(Mutex<BTreeMap<String, Vec<Letter>>>);

impl Office {
    fn boxes(&self) -> MutexGuard<'_, BTreeMap<String, Vec<Letter>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Mail for Office {
    fn open(&self, _: &Context, owner: &str) -> Result<(), Failure<Never>> {
        self.boxes().entry(owner.to_owned()).or_default();
        Ok(())
    }

    fn post(&self, _: &Context, owner: &str, letter: Letter) -> Result<i32, Failure<MailPostException>> {
        let mut boxes = self.boxes();
        let letters = boxes.get_mut(owner).ok_or_else(|| NoMailbox { owner: owner.to_owned().into() })?;
        letters.push(letter);
        Ok(letters.len() as i32)
    }

    fn deliver(&self, _: &Context, owner: &str) -> Result<Vec<Letter>, Failure<MailDeliverException>> {
        let mut boxes = self.boxes();
        let letters = boxes.get_mut(owner).ok_or_else(|| NoMailbox { owner: owner.to_owned().into() })?;
        Ok(std::mem::take(letters))
    }

    fn reading(&self, _: &Context, _: &str) -> Result<(), Failure<Never>> {
        Ok(())
    }
}

fn main() -> anyhow::Result<()> {
    let fabric = dunlin::fabric::shm()?;
    let address = format!("shm:example-mail-{}", std::process::id());
    let _server = serve_with(&fabric, &address, MailProcessor(Office::default()), ServerOptions::default())?;
    let mut client = MailClient::connect_with(&fabric, &address, ClientOptions::default())?;

    client.open("ada")?;
    let letter =
        Letter { sender: "charles".into(), text: "It works.".into(), attachment: Some(vec![1; 4000].into()) };
    // A batch: many letters in few messages.
    let posted: Vec<_> = (0..30).map(|_| client.push_post("ada", &letter)).collect::<Result<_, _>>()?;
    client.flush()?;
    for call in posted {
        client.wait(call)?;
    }
    client.reading("ada")?;
    let letters = client.deliver("ada")?;
    println!("{} letters, the first from {}: {}", letters.len(), letters[0].sender, letters[0].text);
    match client.post("nobody", &letter) {
        Err(MailError::NoMailbox(missing)) => {
            println!("no mailbox of {}", missing.owner)
        }
        other => anyhow::bail!("an exception was expected, not {other:?}"),
    }
    println!("plans:");
    let functions = dunlin_examples::mail::MAIL_SERVICE.functions;
    for (function, selection) in functions.iter().zip(client.inner().selections()) {
        println!("  {:<8} {}", function.name, selection.protocol.unwrap_or("halves of two protocols"));
    }
    Ok(())
}
