//! A small API server: paged lists, watches, and writes with preconditions, of objects that it
//! stores as text. It neither validates the objects nor authenticates clients.

mod answers;
mod objects;
mod path;
mod watching;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result};
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rcgen::{CertifiedKey, generate_simple_self_signed};
use serde_json::json;
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};

pub(crate) use objects::Objects;

/// Serves `objects` until the program exits. Writes a kubeconfig into `directory` and returns its
/// path.
pub(crate) fn serve(objects: Arc<Objects>, directory: &Path) -> Result<PathBuf> {
    let CertifiedKey { cert, signing_key } = generate_simple_self_signed(vec!["localhost".into()])?;
    let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(signing_key.serialize_der()));
    let mut tls = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(vec![cert.der().clone()], key)?;
    tls.alpn_protocols = vec![b"h2".to_vec()];
    let acceptor = TlsAcceptor::from(Arc::new(tls));

    let listener = std::net::TcpListener::bind("127.0.0.1:0").context("cannot listen")?;
    listener.set_nonblocking(true)?;
    let port = listener.local_addr()?.port();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()?;
    runtime.spawn(async move {
        let listener = TcpListener::from_std(listener).expect("a listening socket");
        while let Ok((stream, _)) = listener.accept().await {
            let (acceptor, objects) = (acceptor.clone(), objects.clone());
            tokio::spawn(async move {
                let _ = stream.set_nodelay(true);
                let Ok(stream) = acceptor.accept(stream).await else {
                    return;
                };
                let service = service_fn(move |request| answers::answer(objects.clone(), request));
                let mut connection = http2::Builder::new(TokioExecutor::new());
                // Real API servers use Go's HTTP/2 server, whose default this is.
                connection.max_concurrent_streams(250);
                let _ = connection
                    .serve_connection(TokioIo::new(stream), service)
                    .await;
            });
        }
    });
    // Keeps the server running until the process exits.
    std::mem::forget(runtime);

    let kubeconfig = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "c",
        "clusters": [{"name": "k", "cluster": {
            "server": format!("https://localhost:{port}"),
            "certificate-authority-data": base64::Engine::encode(
                &base64::engine::general_purpose::STANDARD, cert.pem(),
            ),
        }}],
        "users": [{"name": "u", "user": {"token": "bench"}}],
        "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
    });
    let file = directory.join("kubeconfig");
    std::fs::write(&file, kubeconfig.to_string())?;
    Ok(file)
}
