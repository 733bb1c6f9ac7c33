//! Proxies in the environment of a node, which the plugins ignore.

use crate::scene::{Examined, is_good, on_a_good_node};

#[test]
fn doctor_names_the_proxies_that_plugins_ignore() {
    on_a_good_node(|scene| {
        let runtime = "HTTPS_PROXY=http://me:secret@127.0.0.1:1\0NO_PROXY=.svc\0";
        scene
            .pod
            .container
            .file("proc/4711/comm", "containerd\n")
            .unwrap();
        scene
            .pod
            .container
            .file("proc/4711/environ", runtime)
            .unwrap();
        scene.pod.set("https_proxy", "http://127.0.0.1:1");
        // The doctor itself connects directly, too.
        is_good(scene);
        let said = scene.doctor();
        let words = said.words("proxies");
        let named = "https_proxy of calico doctor (without NO_PROXY); HTTPS_PROXY of containerd \
                     (NO_PROXY: .svc)";
        assert!(
            words.contains(named) && !words.contains("secret"),
            "{words}"
        );

        scene.proxy.go_away();
        let said = scene.doctor();
        assert!(
            said.wrong().contains(&"warn proxies".to_owned()),
            "{said:#?}"
        );
        assert!(
            said.words("proxies")
                .contains(" does not answer -> let this node reach"),
            "{said:#?}"
        );
    });
}
