//! [`Relay`]: a TLS endpoint in front of the plain endpoint of etcd, which offers TLS 1.2 only. No
//! flag of etcd 3.4 disables TLS 1.3.

use std::net::TcpListener;
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};

use integration_tests::etcd;
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener as AsyncListener, TcpStream};
use tokio::runtime;
use tokio::sync::oneshot;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::version::TLS12;
use tokio_rustls::rustls::{CipherSuite, ServerConfig};

use crate::tls_etcd::certificates::Certificates;

/// A running relay. It ends when the value is dropped.
pub(crate) struct Relay {
    pub(crate) url: String,
    /// The server has the certificate of these, and asks for no client certificate.
    pub(crate) certificates: Certificates,
    /// The cipher suite of each connection so far.
    suites: Arc<Mutex<Vec<CipherSuite>>>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Relay {
    pub(crate) fn start() -> Relay {
        let certificates = Certificates::new("ours");
        let chain = vec![
            CertificateDer::from_pem_slice(certificates.text("server.pem").as_bytes()).unwrap(),
        ];
        let key =
            PrivateKeyDer::from_pem_slice(certificates.text("server-key.pem").as_bytes()).unwrap();
        let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_protocol_versions(&[&TLS12])
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(chain, key)
            .unwrap();
        config.alpn_protocols = vec![b"h2".to_vec()];
        let acceptor = TlsAcceptor::from(Arc::new(config));

        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let url = format!("https://{}", listener.local_addr().unwrap());
        let suites = Arc::new(Mutex::new(Vec::new()));
        let (stop, stopped) = oneshot::channel();
        let seen = suites.clone();
        let thread = thread::spawn(move || {
            let runtime = runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            runtime.block_on(async {
                tokio::select! {
                    () = serve(listener, acceptor, seen) => {}
                    _ = stopped => {}
                }
            });
        });
        Relay {
            url,
            certificates,
            suites,
            stop: Some(stop),
            thread: Some(thread),
        }
    }

    pub(crate) fn suites(&self) -> Vec<CipherSuite> {
        self.suites.lock().unwrap().clone()
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

async fn serve(listener: TcpListener, acceptor: TlsAcceptor, suites: Arc<Mutex<Vec<CipherSuite>>>) {
    let listener = AsyncListener::from_std(listener).unwrap();
    while let Ok((client, _)) = listener.accept().await {
        let (acceptor, suites) = (acceptor.clone(), suites.clone());
        tokio::spawn(async move {
            let Ok(mut client) = acceptor.accept(client).await else {
                return;
            };
            let suite = client
                .get_ref()
                .1
                .negotiated_cipher_suite()
                .map(|suite| suite.suite());
            suites.lock().unwrap().extend(suite);
            let address = etcd::ENDPOINT.trim_start_matches("http://");
            if let Ok(mut server) = TcpStream::connect(address).await {
                let _ = copy_bidirectional(&mut client, &mut server).await;
            }
        });
    }
}
