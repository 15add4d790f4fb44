//! A small client of the Kubernetes API server: three requests do not justify a client library with all its types.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use http::{Method, Request, Response, StatusCode, Uri, header};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

/// How long the server may take to connect and to answer.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
/// The longest answer, for example the list of a node's pods.
const MAX_ANSWER: usize = 64 << 20;
/// Where a pod finds the credentials of its service account.
const SERVICE_ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// The API server, and how to authenticate to it.
#[derive(Clone)]
pub struct ApiServer {
    address: Uri,
    token_file: Option<PathBuf>,
    tls: Option<TlsConnector>,
}

/// Where the API server is, as given by the administrator. What is absent comes from the pod's service account.
#[derive(Clone, Debug, Default)]
pub struct ApiServerOptions {
    /// `https://HOST:PORT`, or `http://` on a loopback address.
    pub url: Option<String>,
    /// A file with a bearer token. It is read for every request, because tokens expire.
    pub token_file: Option<PathBuf>,
    /// A file with the certificates to trust, in PEM.
    pub ca_file: Option<PathBuf>,
}

impl ApiServer {
    /// The server that the options name, else the one of the cluster that this pod runs in.
    pub fn new(options: &ApiServerOptions) -> Result<Self> {
        let in_cluster = options.url.is_none();
        let url = match &options.url {
            Some(url) => url.clone(),
            None => in_cluster_url()?,
        };
        let address: Uri = url.parse().with_context(|| format!("the API server {url:?} is not a URL"))?;
        let host = address.host().with_context(|| format!("the API server {url:?} has no host name"))?;
        let default = |name: &str| in_cluster.then(|| PathBuf::from(SERVICE_ACCOUNT).join(name));
        let token_file = options.token_file.clone().or_else(|| default("token"));
        let tls = match address.scheme_str() {
            Some("https") => {
                let ca_file = options.ca_file.clone().or_else(|| default("ca.crt"));
                let ca_file =
                    ca_file.context("https:// needs --ca-file with the API server's certificates")?;
                Some(tls_connector(&ca_file)?)
            }
            // A token in clear text must not leave the machine.
            Some("http") if matches!(host, "127.0.0.1" | "[::1]" | "localhost") => None,
            _ => bail!("the API server {url:?} is neither https:// nor http:// on a loopback address"),
        };
        Ok(Self { address, token_file, tls })
    }

    /// Reads an object or a list.
    pub async fn get(&self, path: &str) -> Result<Value> {
        let response = self.send(Method::GET, path, None).await?;
        self.read(path, response).await
    }

    /// Creates an object. An object of the same name that exists already is a success.
    pub async fn create(&self, path: &str, object: &Value) -> Result<()> {
        let response = self.send(Method::POST, path, Some(object)).await?;
        if response.status() == StatusCode::CONFLICT {
            return Ok(());
        }
        self.read(path, response).await.map(drop)
    }

    /// Reads objects as the server sends them, one JSON text per line.
    pub async fn watch(&self, path: &str) -> Result<WatchLines> {
        let response = self.send(Method::GET, path, None).await?;
        if !response.status().is_success() {
            // Reading reports the server's message.
            self.read(path, response).await?;
            bail!("the API server refuses to watch {path}");
        }
        Ok(WatchLines { body: response.into_body(), buffer: Vec::new() })
    }

    async fn read(&self, path: &str, response: Response<Incoming>) -> Result<Value> {
        let status = response.status();
        let body = Limited::new(response.into_body(), MAX_ANSWER).collect();
        let body = tokio::time::timeout(REQUEST_TIMEOUT, body).await;
        let body = body.with_context(|| format!("the API server does not finish its answer to {path}"))?;
        let body = body.map_err(|error| anyhow::anyhow!("{path} of the API server: {error}"))?.to_bytes();
        let value: Value = serde_json::from_slice(&body).unwrap_or_default();
        if !status.is_success() {
            let message = value["message"].as_str().unwrap_or("no message");
            bail!("the API server answers {status} to {path}: {message}");
        }
        Ok(value)
    }

    async fn send(&self, method: Method, path: &str, body: Option<&Value>) -> Result<Response<Incoming>> {
        let response = tokio::time::timeout(REQUEST_TIMEOUT, self.connect_and_send(method, path, body)).await;
        response.with_context(|| format!("the API server at {} does not answer", self.address))?
    }

    async fn connect_and_send(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<Response<Incoming>> {
        let host = self.address.host().unwrap_or_default();
        let port = self.address.port_u16().unwrap_or(if self.tls.is_some() { 443 } else { 80 });
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        let stream = TcpStream::connect((host.as_str(), port)).await;
        let stream =
            stream.with_context(|| format!("cannot connect to the API server at {}", self.address))?;
        let body = body.map(ToString::to_string).unwrap_or_default();
        let authority = self.address.authority().map(ToString::to_string).unwrap_or_default();
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header(header::HOST, authority)
            .header(header::ACCEPT, "application/json")
            .header(header::CONTENT_TYPE, "application/json")
            .header(header::USER_AGENT, "xsched-kubernetes");
        if let Some(file) = &self.token_file {
            let token = tokio::fs::read_to_string(file).await;
            let token = token.with_context(|| format!("cannot read the token {}", file.display()))?;
            request = request.header(header::AUTHORIZATION, format!("Bearer {}", token.trim()));
        }
        let request = request.body(Full::new(Bytes::from(body))).context("the request is not valid")?;
        match &self.tls {
            None => exchange(TokioIo::new(stream), request).await,
            Some(tls) => {
                let name = ServerName::try_from(host.clone())
                    .with_context(|| format!("{host:?} is not a host name"))?;
                let stream = tls.connect(name, stream).await;
                let stream =
                    stream.with_context(|| format!("cannot verify the API server at {}", self.address))?;
                exchange(TokioIo::new(stream), request).await
            }
        }
    }
}

/// Sends one request on a connection of its own: the agent sends few, and a connection that is never reused cannot be stale.
async fn exchange<S>(stream: S, request: Request<Full<Bytes>>) -> Result<Response<Incoming>>
where
    S: hyper::rt::Read + hyper::rt::Write + Unpin + Send + 'static,
{
    let (mut sender, connection) = hyper::client::conn::http1::handshake(stream).await?;
    // Ends when the answer has been read or dropped.
    tokio::spawn(connection);
    Ok(sender.send_request(request).await?)
}

fn in_cluster_url() -> Result<String> {
    let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let host = variable("KUBERNETES_SERVICE_HOST")
        .context("this program does not run in a pod: give the API server with --api-server")?;
    let port = variable("KUBERNETES_SERVICE_PORT").unwrap_or_else(|| "443".to_owned());
    Ok(if host.contains(':') { format!("https://[{host}]:{port}") } else { format!("https://{host}:{port}") })
}

fn tls_connector(ca_file: &PathBuf) -> Result<TlsConnector> {
    let unreadable = || format!("cannot read the certificates {}", ca_file.display());
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(ca_file).with_context(unreadable)? {
        roots.add(certificate.with_context(unreadable)?).with_context(unreadable)?;
    }
    let config = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    Ok(TlsConnector::from(Arc::new(config)))
}

/// The lines of a watch.
#[derive(Debug)]
pub struct WatchLines {
    body: Incoming,
    buffer: Vec<u8>,
}

impl WatchLines {
    /// The next object; none at the end of the watch, or after `timeout` without one.
    pub async fn next(&mut self, timeout: Duration) -> Result<Option<Value>> {
        loop {
            if let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.buffer.drain(..=end).collect();
                let value = serde_json::from_slice(&line);
                return value.map(Some).context("the API server sent a line that is not JSON");
            }
            if self.buffer.len() > MAX_ANSWER {
                bail!("the API server sent a line of more than {MAX_ANSWER} bytes");
            }
            match tokio::time::timeout(timeout, self.body.frame()).await {
                Ok(Some(frame)) => {
                    let frame = frame.context("the watch of the API server failed")?;
                    self.buffer.extend_from_slice(frame.data_ref().map_or(&[], |data| data));
                }
                Ok(None) | Err(_) => return Ok(None),
            }
        }
    }
}
