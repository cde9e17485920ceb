//! The faults of kube-runtime 5.0.0 that a watch can meet, each with the number that the research gave it.

use std::sync::{Arc, Mutex};

use http::{Request, Response};
use k8s_openapi::api::core::v1::Node;
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};
use tokio::time::Instant;
use tower::service_fn;

use super::*;

/// What the server answers to the nth request, and every request it got, with its time.
type Script = fn(usize, &str) -> (u16, String);
type Asked = Arc<Mutex<Vec<(Duration, String)>>>;

fn server(script: Script) -> (Client, Asked) {
    let asked: Asked = Arc::default();
    let (log, start) = (asked.clone(), Instant::now());
    let service = service_fn(move |request: Request<Body>| {
        let uri = request.uri().to_string();
        let n = {
            let mut log = log.lock().unwrap();
            log.push((start.elapsed(), uri.clone()));
            log.len() - 1
        };
        async move {
            sleep(Duration::from_millis(1)).await;
            let (code, body) = script(n, &uri);
            Ok::<_, std::io::Error>(
                Response::builder().status(code).body(Body::from(body.into_bytes())).unwrap(),
            )
        }
    });
    (Client::new(service, "default"), asked)
}

fn line(kind: &str, object: &Value) -> String {
    format!("{}\n", json!({"type": kind, "object": object}))
}

fn node(name: &str, version: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "resourceVersion": version}})
}

fn listed(version: &str) -> String {
    let metadata = json!({"resourceVersion": version, "annotations": {LIST_END: "true"}});
    line("ADDED", &node("a", "1"))
        + &line("BOOKMARK", &json!({"apiVersion": "v1", "kind": "Node", "metadata": metadata}))
}

fn refused(code: u16) -> (u16, String) {
    let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": "no", "reason": "", "code": code});
    (code, status.to_string())
}

async fn heard(client: Client, patience: Duration) -> Vec<String> {
    let stream = follow(
        Api::<Node>::all(client),
        "nodes",
        Part::default(),
        Arc::new(|node: &Node| Some(node.name_any()).filter(|name| name != "strange")),
        Clock::new(|| jiff::Timestamp::UNIX_EPOCH),
        1,
    );
    let mut stream = Box::pin(stream);
    let mut heard = Vec::new();
    let end = Instant::now() + patience;
    while let Ok(Some(event)) = tokio::time::timeout_at(end, stream.next()).await {
        heard.push(match event {
            Event::All(all, version) => format!("all {all:?} {version}"),
            Event::Is(name) => format!("is {name}"),
            Event::Gone(name, version) => format!("gone {name} {version}"),
            Event::UpTo(version) => format!("up to {version}"),
        });
    }
    heard
}

fn pauses(asked: &Asked) -> Vec<u64> {
    let asked = asked.lock().unwrap();
    asked.windows(2).map(|two| two[1].0.saturating_sub(two[0].0).as_secs()).collect()
}

#[tokio::test(start_paused = true)]
async fn a_list_is_told_when_it_is_complete_and_then_what_happens() {
    let (client, asked) = server(|n, _| match n {
        0 => (200, listed("5") + &line("MODIFIED", &node("a", "6")) + &line("DELETED", &node("a", "7"))),
        _ => (200, line("BOOKMARK", &node("", "9"))),
    });
    let heard = heard(client, Duration::from_millis(700)).await;
    assert_eq!(heard[..4], ["all [\"a\"] 5", "is a", "gone a 7", "up to 9"]);
    assert!(asked.lock().unwrap()[1].1.contains("resourceVersion=7"), "it goes on where it was");
}

#[tokio::test(start_paused = true)]
async fn fault_4_failing_lists_come_more_and_more_rarely() {
    let (client, asked) = server(|_, _| refused(500));
    heard(client, Duration::from_mins(2)).await;
    assert!(asked.lock().unwrap().len() < 12, "{:?}", pauses(&asked));
    assert!(pauses(&asked).last().is_some_and(|pause| *pause >= 20), "{:?}", pauses(&asked));
}

#[tokio::test(start_paused = true)]
async fn fault_4_repeated_410_in_a_watch_come_more_and_more_rarely() {
    let (client, asked) = server(|_, uri| {
        let gone = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": "too old", "reason": "Expired", "code": 410});
        if uri.contains("sendInitialEvents") {
            (200, listed("5") + &line("ERROR", &gone))
        } else {
            refused(500)
        }
    });
    heard(client, Duration::from_mins(2)).await;
    assert!(asked.lock().unwrap().len() < 12, "{:?}", pauses(&asked));
}

#[tokio::test(start_paused = true)]
async fn fault_5_a_version_that_the_server_refuses_is_not_asked_for_twice() {
    let (client, asked) = server(|n, uri| match n {
        0 => (200, listed("5")),
        1 => refused(410),
        2 if uri.contains("sendInitialEvents") => (200, listed("9")),
        _ => refused(500),
    });
    let heard = heard(client, Duration::from_secs(5)).await;
    assert_eq!(heard[..2], ["all [\"a\"] 5", "all [\"a\"] 9"]);
    let again = asked.lock().unwrap().iter().filter(|(_, uri)| uri.contains("resourceVersion=5")).count();
    assert_eq!(again, 1);
}

#[tokio::test(start_paused = true)]
async fn fault_6_watches_that_end_at_once_come_more_and_more_rarely() {
    let (client, asked) = server(|n, _| if n == 0 { (200, listed("5")) } else { (200, String::new()) });
    heard(client, Duration::from_mins(2)).await;
    assert!(asked.lock().unwrap().len() < 12, "{:?}", pauses(&asked));
}

#[tokio::test(start_paused = true)]
async fn a_list_that_breaks_off_is_not_taken_for_all() {
    let (client, _) = server(|n, _| match n {
        0 => (200, line("ADDED", &node("a", "1"))),
        _ => (200, line("ADDED", &node("b", "2")) + &listed("5")),
    });
    let heard = heard(client, Duration::from_secs(2)).await;
    assert_eq!(heard[0], "all [\"b\", \"a\"] 5", "nothing is left of the first try");
}

#[tokio::test(start_paused = true)]
async fn where_lists_are_not_streamed_they_come_in_pages() {
    let (client, asked) = server(|_, uri| {
        let page = |name: &str, token: &str| {
            let metadata = json!({"resourceVersion": "5", "continue": token});
            json!({"kind": "NodeList", "apiVersion": "v1", "metadata": metadata, "items": [node(name, "1")]})
                .to_string()
        };
        match uri {
            uri if uri.contains("sendInitialEvents") => refused(422),
            uri if uri.contains("continue=more") => (200, page("b", "")),
            uri if uri.contains("limit=100") => (200, page("a", "more")),
            _ => (200, line("MODIFIED", &node("b", "6"))),
        }
    });
    let heard = heard(client, Duration::from_secs(2)).await;
    assert_eq!(heard[..2], ["all [\"a\", \"b\"] 5", "is b"], "{:?}", asked.lock().unwrap());
}

#[tokio::test(start_paused = true)]
async fn one_that_can_no_longer_be_read_is_as_good_as_gone() {
    let (client, _) = server(|n, _| match n {
        0 => {
            (200, listed("5") + &line("MODIFIED", &node("strange", "6")) + &line("MODIFIED", &node("a", "7")))
        }
        _ => refused(500),
    });
    let heard = heard(client, Duration::from_secs(1)).await;
    assert_eq!(heard[..3], ["all [\"a\"] 5", "gone strange 6", "is a"]);
}
