//! Opens a client with an arbitrary text as its kubeconfig: the client is opened or the text
//! rejected, without a panic.
#![no_main]

use datastore::KubernetesConfig;
use datastore::config::InlineKubeconfig;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let config = KubernetesConfig {
        inline: Some(InlineKubeconfig::new(text)),
        ..KubernetesConfig::default()
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    let _ = runtime.block_on(datastore::kubernetes::client(&config));
});
