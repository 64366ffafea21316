//! Metrics of every epoch for a server.

use super::{Action, Callback, View};
use crate::config::setters;
use crate::error::Result;
use phalanx_distributed::warnings::warning;
use serde_json::{Map, Value};
use std::time::Duration;

/// How long a server may take to answer.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Sends the metrics of every epoch to a server by HTTP POST: as the form field `data`, or with `send_as_json` as the body.
/// A server that does not answer only causes a warning.
#[derive(Clone, Debug)]
pub struct RemoteMonitor {
    root: String,
    path: String,
    field: String,
    headers: Vec<(String, String)>,
    send_as_json: bool,
}

impl Default for RemoteMonitor {
    fn default() -> RemoteMonitor {
        RemoteMonitor::new("http://localhost:9000")
    }
}

impl RemoteMonitor {
    /// Sends to `root` followed by `/publish/epoch/end/`.
    pub fn new(root: &str) -> RemoteMonitor {
        RemoteMonitor {
            root: root.into(),
            path: "/publish/epoch/end/".into(),
            field: "data".into(),
            headers: vec![],
            send_as_json: false,
        }
    }

    setters! {
        /// The path after `root`.
        path: &str,
        /// The name of the form field.
        field: &str,
        /// Whether the metrics are the body of the request, as JSON.
        send_as_json: bool,
    }

    /// Adds a header to every request.
    #[must_use]
    pub fn header(mut self, name: &str, value: &str) -> RemoteMonitor {
        self.headers.push((name.into(), value.into()));
        self
    }

    fn send(&self, metrics: &Value) -> Result<(), ureq::Error> {
        let agent: ureq::Agent =
            ureq::Agent::config_builder().timeout_global(Some(TIMEOUT)).build().into();
        let mut request = agent.post(format!("{}{}", self.root, self.path));
        for (name, value) in &self.headers {
            request = request.header(name, value);
        }
        let text = metrics.to_string();
        match self.send_as_json {
            true => request.content_type("application/json").send(&text)?,
            false => request.send_form([(self.field.as_str(), text.as_str())])?,
        };
        Ok(())
    }
}

impl Callback for RemoteMonitor {
    fn chief_only(&self) -> bool {
        true
    }

    fn wants_batch_events(&self) -> bool {
        false
    }

    fn on_epoch_end(&mut self, view: &View<'_>) -> Result<Action> {
        let mut metrics: Map<String, Value> =
            view.logs.to_json().map(|(name, value)| (name.to_string(), value)).collect();
        metrics.insert("epoch".into(), view.epoch.into());
        if let Err(error) = self.send(&metrics.into()) {
            warning!("RemoteMonitor: could not reach {}: {error}", self.root);
        }
        Ok(Action::Continue)
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::TestRun;
    use super::*;
    use std::io::{Read, Write};
    use std::net::TcpListener;

    /// What a server receives at the end of an epoch.
    fn received(monitor: impl FnOnce(&str) -> RemoteMonitor) -> String {
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut monitor = monitor(&format!("http://{}", server.local_addr().unwrap()));
        let answer = std::thread::spawn(move || {
            let (mut stream, _) = server.accept().unwrap();
            let mut bytes = vec![];
            while !bytes.ends_with(b"}") && !bytes.ends_with(b"%7D") {
                let mut part = [0; 1024];
                let count = stream.read(&mut part).unwrap();
                assert!(count > 0, "the request ended");
                bytes.extend(&part[..count]);
            }
            stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").unwrap();
            String::from_utf8(bytes).unwrap()
        });
        let logs = [("loss", 0.5), ("accuracy", f64::NAN)];
        let action = TestRun::default().view(2, &logs, |view| monitor.on_epoch_end(view));
        assert_eq!(action.unwrap(), Action::Continue);
        answer.join().unwrap()
    }

    #[test]
    fn a_server_receives_the_metrics() {
        let form = received(|root| RemoteMonitor::new(root).header("x-run", "seven"));
        assert!(form.starts_with("POST /publish/epoch/end/ HTTP/1.1"), "{form}");
        assert!(form.contains("x-run: seven"), "{form}");
        let data = "data=%7B%22accuracy%22%3Anull%2C%22epoch%22%3A2%2C%22loss%22%3A0.5%7D";
        assert!(form.ends_with(data), "{form}");
        let json = received(|root| RemoteMonitor::new(root).path("/mine").send_as_json(true));
        assert!(json.starts_with("POST /mine HTTP/1.1"), "{json}");
        assert!(json.ends_with("{\"accuracy\":null,\"epoch\":2,\"loss\":0.5}"), "{json}");
    }

    #[test]
    fn a_server_that_is_absent_does_not_end_the_run() {
        let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let mut monitor = RemoteMonitor::new(&format!("http://{free}"));
        let action = TestRun::default().view(0, &[("loss", 1.0)], |v| monitor.on_epoch_end(v));
        assert_eq!(action.unwrap(), Action::Continue);
    }
}
