//! The cluster on a TLS port: authentication, and watches over a real connection.

use std::net::SocketAddr;
use std::time::Duration;

use futures::{StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Api, PostParams, WatchEvent, WatchParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use nodekeeper_sim::{Cluster, Options, bind};
use tokio::time::timeout;

const ANY_PORT: &str = "127.0.0.1:0";

fn any_port() -> SocketAddr {
    ANY_PORT.parse().expect("it is well formed")
}

async fn config(kubeconfig: &str) -> Config {
    let kubeconfig = Kubeconfig::from_yaml(kubeconfig).expect("it is well formed");
    Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default())
        .await
        .expect("it is well formed")
}

fn config_map(name: &str) -> ConfigMap {
    serde_json::from_value(serde_json::json!({"metadata": {"name": name}, "data": {"a": "1"}}))
        .expect("it is well formed")
}

#[tokio::test]
async fn a_client_with_the_kubeconfig_reads_writes_and_watches() {
    let cluster = Cluster::new(Options::real(1));
    let bound = bind::bind(&cluster, any_port()).await.unwrap();
    let client = Client::try_from(config(&bound.kubeconfig).await).unwrap();
    assert_eq!(client.apiserver_version().await.unwrap().git_version, "v1.36.4");
    let maps: Api<ConfigMap> = Api::default_namespaced(client);
    let made = maps.create(&PostParams::default(), &config_map("one")).await.unwrap();
    let version = made.metadata.resource_version.unwrap();
    let mut events = maps.watch(&WatchParams::default().timeout(20), &version).await.unwrap().boxed();
    maps.create(&PostParams::default(), &config_map("two")).await.unwrap();
    let event = timeout(Duration::from_secs(10), events.try_next()).await.unwrap().unwrap().unwrap();
    assert!(matches!(event, WatchEvent::Added(map) if map.metadata.name.as_deref() == Some("two")));
}

#[tokio::test]
async fn a_wrong_token_is_unauthorized() {
    let cluster = Cluster::new(Options::real(1));
    let bound = bind::bind(&cluster, any_port()).await.unwrap();
    let mut config = config(&bound.kubeconfig).await;
    config.auth_info.token = Some("guessed".to_owned().into());
    let maps: Api<ConfigMap> = Api::default_namespaced(Client::try_from(config).unwrap());
    match maps.get("one").await {
        Err(kube::Error::Api(status)) => assert_eq!(status.code, 401),
        other => panic!("a wrong token got {other:?}"),
    }
}

#[tokio::test]
async fn a_certificate_of_another_cluster_is_not_trusted() {
    let cluster = Cluster::new(Options::real(1));
    let (one, two) =
        (bind::bind(&cluster, any_port()).await.unwrap(), bind::bind(&cluster, any_port()).await.unwrap());
    let mut config = config(&one.kubeconfig).await;
    config.cluster_url = format!("https://{}", two.address).parse().unwrap();
    assert!(Client::try_from(config).unwrap().apiserver_version().await.is_err());
}

#[tokio::test]
async fn a_port_in_use_is_named_in_the_error() {
    let cluster = Cluster::new(Options::real(1));
    let first = bind::bind(&cluster, any_port()).await.unwrap();
    let error = bind::bind(&cluster, first.address).await.unwrap_err().to_string();
    assert!(error.contains(&first.address.to_string()) && error.contains("another port"), "{error}");
}

#[tokio::test]
async fn dropping_it_frees_the_port() {
    let cluster = Cluster::new(Options::real(1));
    let bound = bind::bind(&cluster, any_port()).await.unwrap();
    let address = bound.address;
    drop(bound);
    let freed = async {
        while bind::bind(&cluster, address).await.is_err() {
            tokio::task::yield_now().await;
        }
    };
    assert!(timeout(Duration::from_secs(10), freed).await.is_ok(), "{address} is still in use");
}
