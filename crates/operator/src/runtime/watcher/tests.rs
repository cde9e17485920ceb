//! Faults of kube-runtime 5.0.0 that this watcher must not have, by the number that the research gave them.

use std::sync::Arc;

use http::{Request, Response};
use k8s_openapi::api::core::v1::Node;
use kube::Client;
use kube::client::Body;
use parking_lot::Mutex;
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
            let mut log = log.lock();
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
    let metadata = json!({"resourceVersion": version, "annotations": {INITIAL_EVENTS_END: "true"}});
    line("ADDED", &node("a", "1"))
        + &line("BOOKMARK", &json!({"apiVersion": "v1", "kind": "Node", "metadata": metadata}))
}

fn refused(code: u16) -> (u16, String) {
    let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": "no", "reason": "", "code": code});
    (code, status.to_string())
}

async fn events(client: Client, patience: Duration) -> Vec<String> {
    let stream = watch(
        Api::<Node>::all(client),
        "nodes",
        Selector::default(),
        Arc::new(|node: &Node| Some(node.name_any()).filter(|name| name != "strange")),
        Clock::new(|| jiff::Timestamp::UNIX_EPOCH),
        1,
    );
    let mut stream = Box::pin(stream);
    let mut received = Vec::new();
    let end = Instant::now() + patience;
    while let Ok(Some(event)) = tokio::time::timeout_at(end, stream.next()).await {
        received.push(match event {
            WatchEvent::ListStarted => "list".into(),
            WatchEvent::Listed(name) => format!("listed {name}"),
            WatchEvent::ListEnded(version) => format!("complete {version}"),
            WatchEvent::Applied(name, _) => format!("applied {name}"),
            WatchEvent::Deleted(name, version) => format!("deleted {name} {version}"),
            WatchEvent::Bookmark(version) => format!("bookmark {version}"),
            WatchEvent::NotServed => "not served".into(),
        });
    }
    received
}

fn pauses(asked: &Asked) -> Vec<u64> {
    let asked = asked.lock();
    asked.windows(2).map(|two| two[1].0.saturating_sub(two[0].0).as_secs()).collect()
}

#[tokio::test(start_paused = true)]
async fn a_complete_list_comes_first_and_then_each_event() {
    let (client, asked) = server(|n, _| match n {
        0 => (200, listed("5") + &line("MODIFIED", &node("a", "6")) + &line("DELETED", &node("a", "7"))),
        _ => (200, line("BOOKMARK", &node("", "9"))),
    });
    let events = events(client, Duration::from_millis(700)).await;
    assert_eq!(events[..6], ["list", "listed a", "complete 5", "applied a", "deleted a 7", "bookmark 9"]);
    assert!(asked.lock()[1].1.contains("resourceVersion=7"), "it goes on where it was");
}

#[tokio::test(start_paused = true)]
async fn fault_4_failing_lists_back_off() {
    let (client, asked) = server(|_, _| refused(500));
    events(client, Duration::from_mins(2)).await;
    assert!(asked.lock().len() < 12, "{:?}", pauses(&asked));
    assert!(pauses(&asked).last().is_some_and(|pause| *pause >= 20), "{:?}", pauses(&asked));
}

#[tokio::test(start_paused = true)]
async fn fault_4_repeated_410_in_a_watch_backs_off() {
    let (client, asked) = server(|_, uri| {
        let gone = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": "too old", "reason": "Expired", "code": 410});
        if uri.contains("sendInitialEvents") {
            (200, listed("5") + &line("ERROR", &gone))
        } else {
            refused(500)
        }
    });
    events(client, Duration::from_mins(2)).await;
    assert!(asked.lock().len() < 12, "{:?}", pauses(&asked));
}

#[tokio::test(start_paused = true)]
async fn t08_a_410_within_a_watch_lists_again() {
    let (client, asked) = server(|n, _| {
        let gone = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": "too old", "reason": "Expired", "code": 410});
        if n == 0 { (200, listed("5") + &line("ERROR", &gone)) } else { (200, listed("9")) }
    });
    let events = events(client, Duration::from_secs(2)).await;
    assert_eq!(events[..6], ["list", "listed a", "complete 5", "list", "listed a", "complete 9"]);
    assert!(!asked.lock()[1].1.contains("resourceVersion=5"), "what was compacted is not asked for again");
}

#[tokio::test(start_paused = true)]
async fn fault_5_a_refused_resource_version_is_not_repeated() {
    let (client, asked) = server(|n, uri| match n {
        0 => (200, listed("5")),
        1 => refused(410),
        2 if uri.contains("sendInitialEvents") => (200, listed("9")),
        _ => refused(500),
    });
    let events = events(client, Duration::from_secs(5)).await;
    assert_eq!(events[..6], ["list", "listed a", "complete 5", "list", "listed a", "complete 9"]);
    let again = asked.lock().iter().filter(|(_, uri)| uri.contains("resourceVersion=5")).count();
    assert_eq!(again, 1);
}

#[tokio::test(start_paused = true)]
async fn fault_6_watches_that_end_at_once_back_off() {
    let (client, asked) = server(|n, _| if n == 0 { (200, listed("5")) } else { (200, String::new()) });
    events(client, Duration::from_mins(2)).await;
    let pauses = pauses(&asked);
    assert!(asked.lock().len() < 32, "{pauses:?}");
    // What is known is never much older than that.
    assert!(pauses.last().is_some_and(|pause| (4..=6).contains(pause)), "{pauses:?}");
}

#[tokio::test(start_paused = true)]
async fn a_list_that_breaks_off_begins_again() {
    let (client, _) = server(|n, _| match n {
        0 => (200, line("ADDED", &node("a", "1"))),
        _ => (200, line("ADDED", &node("b", "2")) + &listed("5")),
    });
    let events = events(client, Duration::from_secs(2)).await;
    assert_eq!(events[..6], ["list", "listed a", "list", "listed b", "listed a", "complete 5"]);
}

#[tokio::test(start_paused = true)]
async fn without_streamed_lists_pages_are_read() {
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
    let events = events(client, Duration::from_secs(2)).await;
    let expected = ["list", "listed a", "listed b", "complete 5", "applied b"];
    assert_eq!(events[..5], expected, "{:?}", asked.lock());
}

/// A proxy that cuts long answers lets no streamed list come to its end.
#[tokio::test(start_paused = true)]
async fn after_streamed_lists_that_broke_off_pages_are_read() {
    let (client, asked) = server(|n, uri| {
        let page = json!({"apiVersion": "v1", "kind": "NodeList", "metadata": {"resourceVersion": "5"}, "items": [node("a", "1")]});
        match n {
            _ if uri.contains("sendInitialEvents") => (200, line("ADDED", &node("a", "1"))),
            2 => (200, page.to_string()),
            3 => refused(410),
            _ => (200, String::new()),
        }
    });
    let events = events(client, Duration::from_secs(5)).await;
    let parts =
        ["list", "listed a", "list", "listed a", "list", "listed a", "complete 5", "list", "listed a"];
    assert_eq!(events[..9], parts);
    let asked = asked.lock();
    assert!(!asked[2].1.contains("watch=true"), "{:?}", asked[2]);
    assert!(asked[4].1.contains("sendInitialEvents"), "a list is streamed again after one that was complete");
}

#[tokio::test(start_paused = true)]
async fn an_object_that_cannot_be_projected_counts_as_deleted() {
    let (client, _) = server(|n, _| match n {
        0 => {
            (200, listed("5") + &line("MODIFIED", &node("strange", "6")) + &line("MODIFIED", &node("a", "7")))
        }
        _ => refused(500),
    });
    let events = events(client, Duration::from_secs(1)).await;
    assert_eq!(events[2..5], ["complete 5", "deleted strange 6", "applied a"]);
}

/// A quiet collection is told at once, and a busy one ten times a second.
#[tokio::test(start_paused = true)]
async fn changes_that_follow_another_one_are_received_together() {
    let (sender, receiver) = futures::channel::mpsc::unbounded();
    let mut lines: Lines<Node> = Box::pin(receiver.boxed().peekable());
    let begin = Instant::now();
    tokio::spawn(async move {
        for at in [500, 510, 550, 590, 605, 2000] {
            tokio::time::sleep_until(begin + Duration::from_millis(at)).await;
            let name = Some(at.to_string());
            let metadata = kube::api::ObjectMeta { name, ..Default::default() };
            let sent = sender.unbounded_send(Ok(RawEvent::Added(Node { metadata, ..Node::default() })));
            sent.expect("they are received");
        }
    });
    let mut received = Vec::new();
    while let Ok(RawEvent::Added(node)) = next_change(&mut lines, true).await {
        received.push((node.name_any(), begin.elapsed().as_millis()));
    }
    let received: Vec<(&str, u128)> = received.iter().map(|(name, at)| (name.as_str(), *at)).collect();
    let expected = [("500", 500), ("510", 600), ("550", 600), ("590", 600), ("605", 700), ("2000", 2000)];
    assert_eq!(received, expected);
}
