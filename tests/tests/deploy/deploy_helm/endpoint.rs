//! The values `kubernetesServiceEndpoint`: an address of each node, and the one of the platform.

use integration_tests::manifests::{api_server_on_page, compose, platforms, template};
use serde_json::json;

use super::options::set;
use super::same::assert_equal;
use super::{DEPLOYMENT, can_render};

/// In a pod's own network, an address such as localhost leads to the pod itself.
#[test]
fn node_local_api_server_requires_controllers_on_the_hosts_network() {
    if !can_render() {
        return;
    }
    for host in [
        "localhost",
        "LOCALHOST",
        "localhost.",
        "127.0.0.1",
        "::1",
        "[::1]",
    ] {
        let endpoint = format!("kubernetesServiceEndpoint.host={host}");
        let error = template(&["--set", &endpoint]).unwrap_err().to_string();
        assert!(
            error.contains("set kubeControllers.hostNetwork=true"),
            "{error}"
        );
        let objects = set(&[&endpoint, "kubeControllers.hostNetwork=true"]);
        let pod = &objects[DEPLOYMENT]["spec"]["template"]["spec"];
        assert_eq!(
            (&pod["hostNetwork"], &pod["dnsPolicy"]),
            (&json!(true), &json!("Default"))
        );
        template(&["--set", &endpoint, "--set", "datastore=etcd"]).unwrap();
        template(&["--set", &endpoint, "--set", "kubeControllers.enabled=false"]).unwrap();
    }
    let named = set(&["kubernetesServiceEndpoint.host=127.example.com"]);
    assert_eq!(
        named[DEPLOYMENT]["spec"]["template"]["spec"].get("hostNetwork"),
        None
    );
}

/// A null removes the default of a value from what the templates read.
#[test]
fn null_as_host_or_port_means_the_default() {
    if !can_render() {
        return;
    }
    let no_host = set(&["kubernetesServiceEndpoint.host=null,kubernetesServiceEndpoint.port=null"]);
    assert_eq!(no_host, set(&[]));
    let host = "kubernetesServiceEndpoint.host=api.example.com";
    assert_eq!(
        set(&[host, "kubernetesServiceEndpoint.port=null"]),
        set(&[host])
    );
}

/// Returns the values that set the platform's address of the API server.
fn of_platform(platform: &str) -> String {
    format!("platform={platform},kubernetesServiceEndpoint.ofPlatform=true")
}

#[test]
fn value_of_platform_renders_the_same_as_the_component_api_server() {
    if !can_render() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    for platform in platforms().unwrap() {
        if api_server_on_page(&platform).unwrap().is_none() {
            continue;
        }
        let component = format!("components/platforms/{platform}");
        let components = [component.clone(), format!("{component}/api-server")];
        let kustomized = |base| {
            compose(
                directory.path(),
                &[base],
                &components.each_ref().map(String::as_str),
            )
            .unwrap()
        };
        let values = of_platform(&platform);
        let on_host = format!("{values},kubeControllers.hostNetwork=true");
        assert_equal(&kustomized("overlays/kubernetes-v1"), &["--set", &on_host]);
        assert_equal(
            &kustomized("overlays/etcd"),
            &["--set", "datastore=etcd", "--set", &values],
        );
    }
}

#[test]
fn value_of_platform_takes_the_address_on_the_page_and_requires_the_hosts_network() {
    if !can_render() {
        return;
    }
    let mut addresses = 0;
    for platform in platforms().unwrap() {
        let Some([host, port]) = api_server_on_page(&platform).unwrap() else {
            continue;
        };
        addresses += 1;
        let values = of_platform(&platform);
        let objects = set(&[&values, "kubeControllers.hostNetwork=true"]);
        let endpoint = &objects["ConfigMap kube-system/kubernetes-services-endpoint"]["data"];
        let expected = json!({ "KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": port });
        assert_eq!(*endpoint, expected, "{platform}");
        let error = template(&["--set", &values]).unwrap_err().to_string();
        assert!(
            error.contains(&format!("{host} is an address of each node")),
            "{error}"
        );
        assert!(
            error.contains("set kubeControllers.hostNetwork=true"),
            "{error}"
        );
    }
    assert_eq!(addresses, 6);
}

#[test]
fn value_of_platform_without_an_address_of_each_node_is_refused() {
    if !can_render() {
        return;
    }
    let refused = |values: &str| template(&["--set", values]).unwrap_err().to_string();
    let mut without = 0;
    for platform in platforms().unwrap() {
        if api_server_on_page(&platform).unwrap().is_some() {
            continue;
        }
        without += 1;
        let error = refused(&format!(
            "{},kubeControllers.hostNetwork=true",
            of_platform(&platform)
        ));
        let cause =
            format!("the address of the API server on platform={platform} depends on the cluster");
        let advice =
            "set kubernetesServiceEndpoint.host and kubernetesServiceEndpoint.port instead";
        for part in [cause.as_str(), advice, "docs/platforms/README.md"] {
            assert!(error.contains(part), "{part}: {error}");
        }
    }
    assert_eq!(without, 6);
    let error = refused(&of_platform(""));
    assert!(
        error.contains(
            "kubernetesServiceEndpoint.ofPlatform=true without a platform; set platform, or"
        ),
        "{error}"
    );
}

#[test]
fn value_of_platform_beside_a_host_or_a_port_is_refused() {
    if !can_render() {
        return;
    }
    for (other, found) in [
        (
            "host=api.example.com",
            "with host=\"api.example.com\" and port=6443",
        ),
        ("port=443", "with host=\"\" and port=443"),
    ] {
        for platform in ["talos", "gke", ""] {
            let values = format!(
                "{},kubernetesServiceEndpoint.{other}",
                of_platform(platform)
            );
            let error = template(&["--set", &values]).unwrap_err().to_string();
            assert!(
                error.contains(found) && error.contains("both name an address"),
                "{error}"
            );
        }
    }
}

/// Without the value, a platform keeps the address that Kubernetes gives to each container.
#[test]
fn value_of_platform_is_off_by_default() {
    if !can_render() {
        return;
    }
    for platform in platforms().unwrap() {
        let chosen = format!("platform={platform}");
        let objects = set(&[&chosen]);
        assert_eq!(
            objects,
            set(&[&chosen, "kubernetesServiceEndpoint.ofPlatform=false"]),
            "{platform}"
        );
        assert!(
            !objects.contains_key("ConfigMap kube-system/kubernetes-services-endpoint"),
            "{platform}"
        );
    }
}
