//! Commands: each gets a reply, and none delays the questions.

use super::{twin::Twin, *};
use crate::agent::requests::{AcceptedReply, AgentInfo, InfoRequest, PlanRequest, call};
use crate::fleet::control::CommandError;
use crate::fleet::messages::JSON_BYTES;
use std::sync::{
    atomic::Ordering,
    mpsc::{Receiver, channel},
};

#[test]
fn a_command_is_carried_out_and_replied_to() {
    let server = serve("h1", Arc::new(Twin::default()));
    let address = server.address().to_string();
    let long = "x".repeat(300_000);
    for request in [json!({"status": {}}), json!(null), json!({ "long": long })] {
        let reply: Value = control::call(&address, &network(), &request, HANG).unwrap();
        assert!(reply == json!({ "echo": request }));
    }
}

#[test]
fn a_command_with_another_secret_or_to_a_dead_address_fails_with_the_address() {
    let server = serve("h1", Arc::new(Twin::default()));
    let address = server.address().to_string();
    let error =
        control::call::<Value>(&address, &FleetNetwork::new(&[1; 32]).unwrap(), &1, HANG).unwrap_err();
    assert!(error.to_string().contains(&address), "{error}");
    let dead_address = dead("h2").address;
    let error = control::call::<Value>(&dead_address, &network(), &1, HANG).unwrap_err();
    assert!(error.to_string().contains(&dead_address), "{error}");
    let error = control::call::<Value>(&address, &network(), &"x".repeat(JSON_BYTES), HANG).unwrap_err();
    assert!(matches!(error, CommandError::TooLong { .. }));
}

#[test]
fn a_reply_that_is_too_long_says_so() {
    let server = serve("h1", Arc::new(Twin::default()));
    let request = "x".repeat(JSON_BYTES - 2);
    let reply: Value = control::call(&server.address().to_string(), &network(), &request, HANG).unwrap();
    assert!(reply["error"].as_str().unwrap().contains("at most"), "{reply}");
}

/// Executes `"wait"` until it is released, or until the server stops.
struct Slow {
    go_on: parking_lot::Mutex<Receiver<()>>,
    stop: Arc<AtomicBool>,
    began: std::sync::mpsc::Sender<()>,
}

impl CommandService for Slow {
    fn handle(&self, request: &[u8]) -> String {
        if request == b"\"wait\"" {
            self.began.send(()).unwrap();
            let go_on = self.go_on.lock();
            while !self.stop.load(Ordering::Acquire) && go_on.recv_timeout(Duration::from_millis(20)).is_err()
            {
            }
        }
        "\"done\"".to_owned()
    }
}

#[test]
fn a_long_command_holds_up_neither_asking_nor_other_commands_nor_the_end() {
    let (tell, go_on) = channel();
    let (began, has_begun) = channel();
    let stop = Arc::new(AtomicBool::new(false));
    let slow = Slow { go_on: go_on.into(), stop: Arc::clone(&stop), began };
    let options = ServerOptions { commands: 2, ..ServerOptions::new("127.0.0.1:0", "h1", network()) };
    let server = Server::start(options, Arc::new(Twin::default()), Arc::new(slow), stop).unwrap();
    let address = server.address().to_string();
    let call = |what: &str| control::call::<Value>(&address, &network(), &what, HANG);
    std::thread::scope(|scope| {
        let long = scope.spawn(|| call("wait"));
        has_begun.recv_timeout(HANG).unwrap();
        assert_eq!(call("short").unwrap(), json!("done"));
        let asker = asker(options_of(&server), PATIENT);
        let ticket = send(&asker, 1, 0..100);
        asker.end_round();
        assert!(asker.receive(ticket) == all_known(0..100));
        // With two in progress, a third is refused for now.
        let other = scope.spawn(|| call("wait"));
        has_begun.recv_timeout(HANG).unwrap();
        let refused = call("short").unwrap();
        assert!(refused["error"].as_str().unwrap().contains("in progress"), "{refused}");
        tell.send(()).unwrap();
        tell.send(()).unwrap();
        assert_eq!(long.join().unwrap().unwrap(), json!("done"));
        assert_eq!(other.join().unwrap().unwrap(), json!("done"));
        // A command in progress when the server stops ends with it; its reply may still be sent.
        let cut = scope.spawn(|| call("wait"));
        has_begun.recv_timeout(HANG).unwrap();
        server.stop();
        let _ = cut.join().unwrap();
    });
}

fn options_of(server: &Server) -> AskerOptions {
    options(&[member("h1", server)], 1)
}

/// An agent of another version, whose replies lack fields.
struct Lacking;

impl CommandService for Lacking {
    fn handle(&self, _request: &[u8]) -> String {
        r#"{"ok":{"name":"h1","vms":["web"]}}"#.to_owned()
    }
}

/// Symptom: a reply without its fields was a plan of no rounds, or a job without an id, and the job went on.
/// Cause: fields were looked up by name, and a missing one was empty. Fix: a reply is parsed as its type.
#[test]
fn a_reply_that_lacks_a_field_is_an_error_that_names_it() {
    let stop = Arc::new(AtomicBool::new(false));
    let options = server_options("h1");
    let server = Server::start(options, Arc::new(Twin::default()), Arc::new(Lacking), stop).unwrap();
    let member = member("h1", &server);
    let plan = PlanRequest { rounds: "auto".to_owned(), only: Vec::new() };
    let reason = call(&member, &network(), plan).unwrap_err();
    for part in ["agent h1", &member.address, "missing field `bytes`", "same copal"] {
        assert!(reason.contains(part), "{part}: {reason}");
    }
    let info: Result<AgentInfo, String> = call(&member, &network(), InfoRequest {});
    assert!(info.unwrap_err().contains("missing field `version`"));
    // A reply type without fields lacks none, and unknown fields are ignored.
    let AcceptedReply {} = control::call(&member.address, &network(), &7, HANG).unwrap();
}
