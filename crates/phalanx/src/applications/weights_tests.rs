use super::*;
use crate::applications::Application;
use crate::model::Model;
use md5::Digest;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;

/// Serves `data` once for each request, and returns the address.
fn serve(data: Vec<u8>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            let lines = BufReader::new(stream.try_clone().unwrap()).lines();
            lines.map_while(|line| line.ok()).find(|line| line.is_empty());
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", data.len());
            let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(&data));
        }
    });
    url
}

fn preset(url: &str, data: &[u8]) -> Preset {
    let hash: String = md5::Md5::digest(data).iter().map(|b| format!("{b:02x}")).collect();
    Preset {
        network: "test",
        file: "test_notop.h5".into(),
        url: format!("{url}test_notop.h5"),
        checksum: Some(Box::leak(hash.into_boxed_str())),
        side: 224,
    }
}

fn small(classes: Option<usize>) -> Application {
    let app = Application::new("mobilenet-v3-small").unwrap().input_shape([32, 32, 3]);
    app.include_top(classes.is_some()).classes(classes.unwrap_or(1))
}

fn weights(model: &Model) -> Vec<Vec<f32>> {
    let tensors = model.get_weights().unwrap();
    tensors.iter().map(|t| t.f32().unwrap().to_vec()).collect()
}

#[test]
fn a_missing_file_is_downloaded_into_the_first_directory_and_found_in_any() {
    let directory = tempfile::tempdir().unwrap();
    let data = b"weights".to_vec();
    let preset = preset(&serve(data.clone()), &data);
    let own = directory.path().join("phalanx/models");
    let keras = directory.path().join("keras/models");
    let both = [own.clone(), keras.clone()];
    let path = preset.find_or_fetch_in(&both).unwrap();
    assert_eq!(path, own.join("test_notop.h5"));
    assert_eq!(std::fs::read(&path).unwrap(), data);
    // Keras' own cache serves as well, without a download.
    std::fs::create_dir_all(&keras).unwrap();
    std::fs::rename(&path, keras.join("test_notop.h5")).unwrap();
    let unreachable = Preset { url: "http://127.0.0.1:1/test_notop.h5".into(), ..preset.clone() };
    assert_eq!(unreachable.find_or_fetch_in(&both).unwrap(), keras.join("test_notop.h5"));
    // Another file under the name is refused.
    std::fs::write(keras.join("test_notop.h5"), b"other").unwrap();
    let error = unreachable.find_or_fetch_in(&both).unwrap_err().to_string();
    assert!(
        error.contains("expected the checksum") && error.contains("of the official file"),
        "{error}"
    );
}

#[test]
fn without_a_server_the_error_says_which_file_belongs_where() {
    let directory = tempfile::tempdir().unwrap();
    let preset = preset("http://127.0.0.1:1/", b"weights");
    let error =
        preset.find_or_fetch_in(&[directory.path().join("models")]).unwrap_err().to_string();
    assert!(error.contains("ImageNet's weights for test"), "{error}");
    assert!(error.contains("test_notop.h5"), "{error}");
    assert!(error.contains(directory.path().to_str().unwrap()), "{error}");
    assert!(error.contains("http://127.0.0.1:1/test_notop.h5"), "{error}");
}

#[test]
fn a_download_with_another_checksum_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let preset = preset(&serve(b"forged".to_vec()), b"weights");
    let error = preset.find_or_fetch_in(&[directory.path().into()]).unwrap_err().to_string();
    assert!(error.contains("its checksum is"), "{error}");
    assert!(!directory.path().join("test_notop.h5").exists());
}

#[test]
fn files_with_and_without_top_serve_networks_with_and_without() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("mobilenet.h5");
    let full = small(Some(5)).build().unwrap();
    full.initialize(1).unwrap();
    full.save_weights(&path).unwrap();
    let full = weights(&full);
    // The same network.
    let again = small(Some(5)).weights(&path).build().unwrap();
    assert!(weights(&again) == full, "the same network");
    // Without top: the file's is ignored.
    let base = small(None).weights(&path).build().unwrap();
    let base = weights(&base);
    assert!(base[..] == full[..base.len()], "without top");
    // Another number of classes is an error, unless the top is to be new.
    let error = small(Some(3)).weights(&path).build().err().unwrap().to_string();
    assert!(error.contains("[1, 1, 1024, 5] for [1, 1, 1024, 3]"), "{error}");
    let new = small(Some(3)).weights(&path).new_top(true).build().unwrap();
    new.initialize(2).unwrap();
    assert!(weights(&new)[..base.len()] == base[..], "below a new top");
    assert!(weights(&new)[base.len()] != full[base.len()], "the new top");
    // A file without top, by names that are not the network's own: by order, as in Keras.
    let bare = small(None).weights(&path).build().unwrap();
    bare.save_weights(&path).unwrap();
    let topped = small(Some(4)).weights(&path).build().unwrap();
    topped.initialize(3).unwrap();
    assert!(weights(&topped)[..base.len()] == base[..], "from a file without top");
    // A file of another network.
    let other = Application::new("resnet50").unwrap().input_shape([32, 32, 3]).weights(&path);
    let error = other.build().err().unwrap().to_string();
    assert!(error.contains("layers with weights"), "{error}");
}
