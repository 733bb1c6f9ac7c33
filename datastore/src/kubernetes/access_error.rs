//! [`AccessError`]: a reason why no request can be sent to the API server.

use kube::config::InClusterError;

/// A reason why no request can be sent to the API server. The text contains no token and no key.
#[derive(Debug, thiserror::Error)]
pub enum AccessError {
    /// A kubeconfig that cannot be read, parsed, merged or used.
    #[error("kubeconfig {place}: {reason}")]
    Kubeconfig {
        /// The path of the file, or the paths of several files.
        place: String,
        /// The position of a syntax error, or the cause of another error.
        reason: String,
    },
    /// Several kubeconfig files are configured, with these paths, and none of them exists.
    #[error("no kubeconfig: none of {0} exists; name an existing file in kubernetes.kubeconfig")]
    NoKubeconfig(String),
    /// Neither a kubeconfig nor a server is configured, and the process has no usable service
    /// account of a pod.
    #[error(
        "no Kubernetes API server is configured, and the service account of a pod is not usable \
         ({0}); set kubernetes.kubeconfig (KUBECONFIG), or kubernetes.k8s_api_root with \
         policy.k8s_auth_token"
    )]
    NotConfigured(#[source] InClusterError),
    /// A user of a kubeconfig with a credential plugin, on a node.
    #[error(
        "kubeconfig {place}: user {user} authenticates with exec {command}, which is not supported \
         on a node, because each call would run another program; give the plugin a token or a \
         client certificate"
    )]
    UnsupportedAuthentication {
        /// The path of the kubeconfig.
        place: String,
        /// The user of the context.
        user: String,
        /// The program.
        command: String,
    },
    /// A user of a kubeconfig with an `auth-provider`, which Kubernetes has removed.
    #[error(
        "kubeconfig {place}: user {user} authenticates with auth-provider {provider}, which is not \
         supported; use `exec` with the program that replaces it, such as gke-gcloud-auth-plugin \
         or kubelogin"
    )]
    AuthProvider {
        /// The path of the kubeconfig.
        place: String,
        /// The user of the context.
        user: String,
        /// The name of the provider.
        provider: String,
    },
    /// A credential plugin that gives no credentials.
    #[error("{place}: the credential plugin {command} of user {user}: {reason}")]
    CredentialPlugin {
        /// `kubeconfig`, and its path.
        place: String,
        /// The user of the context.
        user: String,
        /// The program.
        command: String,
        /// The problem, without any output of the program.
        reason: String,
    },
    /// A client that may use proxies and run credential plugins, in a call of a container runtime.
    #[error(
        "CNI_COMMAND is set, and a call of a container runtime neither runs credential plugins nor \
         follows proxies; unset CNI_COMMAND"
    )]
    InCniCall,
    /// A cluster of a kubeconfig with a proxy, on a node.
    #[error(
        "kubeconfig {place}: proxy-url of cluster {cluster} is not supported on a node; give the \
         plugin a kubeconfig without proxy-url, whose server this node reaches directly"
    )]
    UnsupportedProxy {
        /// The path of the kubeconfig.
        place: String,
        /// The cluster of the context.
        cluster: String,
    },
    /// A proxy whose URL is invalid.
    #[error("cannot use the proxy in {place}: {reason}")]
    Proxy {
        /// The kubeconfig or the environment variable that contains the URL.
        place: String,
        /// The problem, without the URL.
        reason: String,
    },
    /// Impersonation settings that cannot be sent to the API server.
    #[error(
        "kubeconfig {place}: invalid as, as-uid, as-groups or as-user-extra of user {user}: \
         {reason}"
    )]
    Impersonation {
        /// The path of the kubeconfig.
        place: String,
        /// The user of the context.
        user: String,
        /// The problem.
        reason: String,
    },
    /// A token that cannot be sent.
    #[error("cannot use the token in {place}: {reason}")]
    Token {
        /// The file or the setting that contains the token.
        place: String,
        /// The problem.
        reason: String,
    },
    /// A configured server that is not a URL.
    #[error("k8s_api_root `{found}` is not a URL: {reason}")]
    InvalidServerUrl {
        /// The configured value.
        found: String,
        /// The problem.
        reason: String,
    },
    /// Certificates, keys or other settings of the connection that cannot be used.
    #[error("cannot use the {object} of the Kubernetes API client: {reason}")]
    Tls {
        /// For example `CA certificates`, `certificate` or `key`.
        object: &'static str,
        /// The problem.
        reason: String,
    },
}
