//! Principals that tokens name.

use crate::common::{
    Child, HANG, Serving, attach_address, bytes_of, config, fabric, serve, serve_kept, tag, wait,
};
use crate::kept::keeper;
use dunlin_rpc::{Client, ClientConfig, ConnectError};
use dunlin_tier::RecordError;
use dunlin_tier::message::Refusal;
use dunlin_tier_client::{
    AttachConfig, AttachError, RequestError, Rights, Spec, Tier, Token, gateway_address,
};
use dunlin_tier_node::{PrincipalTokens, ProcessConfig};
use std::time::Duration;

const TOKENS: &str = "TIER_TEST_TOKENS";
const TAG: &str = "TIER_TEST_TAG";
pub(crate) const ALICE: &str = "the-secret-token-of-alice";
pub(crate) const BOB: &str = "the-secret-token-of-bob";

/// Tokens of alice and bob.
pub(crate) fn known(settings: &mut ProcessConfig) {
    settings.tokens.add(ALICE.as_bytes(), "alice").unwrap();
    settings.tokens.add(BOB.as_bytes(), "bob").unwrap();
}

pub(crate) fn attach_by(node: &Serving, token: &[u8]) -> Result<Tier, AttachError> {
    let token = Token(token.to_vec());
    let config = AttachConfig { timeout: HANG, token, ..AttachConfig::new(node.address.clone()) };
    Tier::attach_with(&fabric(), config)
}

fn own_user() -> String {
    format!("user-{}", rustix::process::geteuid().as_raw())
}

#[test]
fn a_token_names_the_principal_in_place_of_the_user() {
    let tag = tag("tokens");
    let node = serve(config(&tag, &["one"], "one"), &tag, known);
    let alice = attach_by(&node, ALICE.as_bytes()).unwrap();
    let bob = attach_by(&node, BOB.as_bytes()).unwrap();
    let user = attach_by(&node, b"").unwrap();
    assert_eq!([alice.principal(), bob.principal(), user.principal()], ["alice", "bob", &own_user()]);

    let region = alice.malloc(64, Spec::here().named("hers")).unwrap();
    for other in [&bob, &user] {
        assert!(matches!(
            other.map("hers", Rights::READ),
            Err(RequestError::Refused { source: Refusal::Record(RecordError::NoSuch), .. })
        ));
        assert_eq!(other.list("one", 0).unwrap().regions, []);
    }
    region.grant("bob", Rights::READ).unwrap();
    bob.map("hers", Rights::READ).unwrap().read(0, &mut [0; 64]).unwrap();
    assert!(user.map("hers", Rights::READ).is_err());
    // Another process of hers.
    let again = attach_by(&node, ALICE.as_bytes()).unwrap();
    again.map("hers", Rights::ALL).unwrap().write(0, &[1; 64]).unwrap();

    // Further connections, of threads and of calls that wait, present the token, too.
    std::thread::scope(|scope| {
        for at in 0..4 {
            let (again, region) = (&again, again.map("hers", Rights::READ).unwrap());
            scope.spawn(move || {
                region.read(at, &mut [0; 8]).unwrap();
                again.lock("hers").unwrap().unlock().unwrap();
            });
        }
    });
    // Of a service: the principal of the caller is the token's.
    let calls = bob.register("who", 1).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut answer = [0; 8];
            let length = alice.call("one", "who", 1, b"", &mut answer).unwrap();
            assert_eq!(&answer[..length], b"alice");
        });
        let request = calls.receive(&mut []).unwrap();
        let caller = request.caller().to_owned();
        request.reply(caller.as_bytes()).unwrap();
    });
}

#[test]
fn a_wrong_token_is_refused_and_the_user_does_not_count() {
    let tag = tag("wrong-tokens");
    let node = serve(config(&tag, &["one"], "one"), &tag, known);
    let (short, long) = (&ALICE.as_bytes()[..ALICE.len() - 1], format!("{ALICE}x"));
    let changed = ALICE.replace('a', "b");
    for wrong in [short, long.as_bytes(), changed.as_bytes(), b"x", &[0; 255][..], own_user().as_bytes()] {
        let refused = attach_by(&node, wrong).unwrap_err();
        assert!(matches!(refused, AttachError::Unauthorised(_)), "{refused}");
    }
    // The engine carries no longer one.
    assert!(matches!(attach_by(&node, &[b'x'; 256]), Err(AttachError::Connect(_))));

    // A node without tokens knows none.
    let two = serve(config(&tag, &["two"], "two"), &tag, |_| {});
    assert!(matches!(attach_by(&two, ALICE.as_bytes()), Err(AttachError::Unauthorised(_))));
    assert_eq!(attach_by(&two, b"").unwrap().principal(), own_user());

    // A client of the engine at the gateway.
    let gateway = gateway_address(&node.address).unwrap();
    let client = |token: &str| {
        let token = token.as_bytes().to_vec();
        let settings = ClientConfig { service: "who".to_owned(), token, ..ClientConfig::default() };
        Client::connect(&fabric(), &gateway, settings)
    };
    assert!(matches!(client(&changed), Err(ConnectError::Unauthorised(_))));
    client(ALICE).unwrap();
    client("").unwrap();
}

/// Runs a node whose memory a keeper has, with the tokens in a variable.
#[test]
fn child() {
    let Ok(tokens) = std::env::var(TOKENS) else { return };
    let (tag, tokens) = (std::env::var(TAG).unwrap(), PrincipalTokens::parse(tokens.as_bytes()).unwrap());
    let _node = serve_kept(config(&tag, &["one"], "one"), &tag, |settings| settings.tokens = tokens).unwrap();
    std::thread::sleep(Duration::from_secs(600));
}

#[test]
fn a_token_that_the_next_life_of_a_node_does_not_know_ends_with_this_one() {
    let tag = tag("kept-tokens");
    let _keeper = keeper("one", &tag);
    let start = |tokens: &str| Child::start("tokens::child", &[(TOKENS, tokens), (TAG, &tag)]);
    let attach = |token: &str| {
        let (timeout, token) = (HANG, Token(token.as_bytes().to_vec()));
        let config = AttachConfig { timeout, token, ..AttachConfig::new(attach_address(&tag, "one")) };
        wait("the node", || Tier::attach_with(&fabric(), config.clone()).ok())
    };
    let mut node = start(&format!("{ALICE} alice\n{BOB} bob"));
    let (alice, bob) = (attach(ALICE), attach(BOB));
    let [hers, his] = [&alice, &bob].map(|tier| tier.malloc(64, Spec::here()).unwrap());
    his.write(0, &[1; 64]).unwrap();
    node.kill();

    // The token of bob is another one now. The principal is the same, and the process does not have its token.
    let next = "the-next-token-of-bob";
    let _node = start(&format!("{ALICE} alice\n{next} bob"));
    assert_eq!(attach(next).principal(), "bob");
    hers.write(0, &[2; 64]).unwrap();
    assert_eq!(bytes_of(&hers).unwrap(), [2; 64]);
    let refused = his.within(Duration::from_secs(2)).write(0, &[2; 64]).unwrap_err();
    assert!(!refused.may_have_executed(), "{refused}");
}
