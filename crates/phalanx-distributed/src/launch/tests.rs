use super::*;

fn read(variables: &[(&str, &str)]) -> Result<Option<Launch>> {
    let find = |name: &str| variables.iter().find(|(n, _)| *n == name).map(|(_, v)| v.to_string());
    Launch::read(find)
}

const TF: &str = r#"{"cluster": {"chief": ["a:1"], "worker": ["b:1", "b:2"]},
    "task": {"type": "worker", "index": 1}}"#;

#[test]
fn every_launcher_is_understood() {
    let launch = |rank, size, local_rank, local_size, launcher| {
        Some(Launch { rank, size, local_rank, local_size, launcher, chief_addr: None })
    };
    let open = [
        ("OMPI_COMM_WORLD_RANK", "5"),
        ("OMPI_COMM_WORLD_SIZE", "8"),
        ("OMPI_COMM_WORLD_LOCAL_RANK", "1"),
        ("OMPI_COMM_WORLD_LOCAL_SIZE", "4"),
    ];
    assert_eq!(read(&open).unwrap(), launch(5, 8, 1, 4, Launcher::OpenMpi));
    let pmi = [("PMI_RANK", "1"), ("PMI_SIZE", "2"), ("PMI_FD", "7")];
    assert_eq!(read(&pmi).unwrap(), launch(1, 2, 0, 1, Launcher::Pmi));
    let slurm = [
        ("SLURM_STEP_ID", "0"),
        ("SLURM_PROCID", "3"),
        ("SLURM_NTASKS", "6"),
        ("SLURM_LOCALID", "1"),
        ("SLURM_STEP_TASKS_PER_NODE", "2(x3)"),
    ];
    assert_eq!(read(&slurm).unwrap(), launch(3, 6, 1, 2, Launcher::Slurm));
    let torch = [("RANK", "0"), ("WORLD_SIZE", "2")];
    let found = read(&torch).unwrap().unwrap();
    assert_eq!((found.rank, found.launcher), (0, Launcher::Torch));
    let tf = read(&[("TF_CONFIG", TF)]).unwrap().unwrap();
    assert_eq!((tf.rank, tf.size, tf.local_rank, tf.local_size), (2, 3, 1, 2));
}

#[test]
fn the_address_of_rank_0_is_read_once() {
    let torch = [("RANK", "1"), ("WORLD_SIZE", "3")];
    let with = |more: &[(&'static str, &'static str)]| read(&[&torch[..], more].concat());
    let chief_addr = |found: Result<Option<Launch>>| found.unwrap().unwrap().chief_addr;
    assert_eq!(chief_addr(with(&[])), None);
    let master = [("MASTER_ADDR", "node-0 "), ("MASTER_PORT", "29500")];
    assert_eq!(chief_addr(with(&master)), Some(("node-0".into(), 29500)));
    assert_eq!(chief_addr(read(&[("TF_CONFIG", TF)])), Some(("a".into(), 1)));
    let both = [("TF_CONFIG", TF), ("MASTER_ADDR", "a"), ("MASTER_PORT", "1")];
    assert_eq!(chief_addr(read(&both)), Some(("a".into(), 1)));
    for (error, message) in [
        (
            with(&master[..1]),
            "MASTER_PORT: expected a value alongside MASTER_ADDR node-0 , received nothing",
        ),
        (
            with(&master[1..]),
            "MASTER_ADDR: expected a value alongside MASTER_PORT 29500, received nothing",
        ),
        (
            with(&[("MASTER_ADDR", "a"), ("MASTER_PORT", "0")]),
            "MASTER_PORT: expected a number from 1 to 65535, received 0",
        ),
        (
            with(&[("MASTER_ADDR", "a"), ("MASTER_PORT", "70000")]),
            "MASTER_PORT: expected a number from 1 to 65535, received 70000",
        ),
        (
            read(&[("TF_CONFIG", TF), ("MASTER_ADDR", "b"), ("MASTER_PORT", "1")]),
            "MASTER_ADDR: expected a:1 as TF_CONFIG says, received b:1",
        ),
    ] {
        let error = error.unwrap_err().to_string();
        assert!(error.contains(message), "{error}");
    }
}

#[test]
fn without_a_launcher_there_is_none() {
    for variables in [
        &[][..],
        &[("PATH", "/bin")],
        &[("RANK", ""), ("WORLD_SIZE", "")],
        // An allocation, not a process started by srun.
        &[("SLURM_NTASKS", "4"), ("SLURM_JOB_ID", "7")],
        // The shell of a batch script.
        &[("SLURM_PROCID", "0"), ("SLURM_NTASKS", "4"), ("SLURM_LOCALID", "0")],
        &[("SLURM_PROCID", "0"), ("SLURM_NTASKS", "4"), ("SLURM_TASKS_PER_NODE", "2,4")],
    ] {
        assert_eq!(read(variables).unwrap(), None, "{variables:?}");
    }
}

#[test]
fn launchers_may_agree_but_not_contradict() {
    let ompi = [("OMPI_COMM_WORLD_RANK", "1"), ("OMPI_COMM_WORLD_SIZE", "2")];
    let with = |more: &[(&'static str, &'static str)]| read(&[&ompi[..], more].concat());
    let same = with(&[("RANK", "1"), ("WORLD_SIZE", "2")]).unwrap().unwrap();
    assert_eq!(same.launcher, Launcher::OpenMpi);
    // Here srun started the daemons of mpirun.
    let daemon = [("SLURM_STEP_ID", "0"), ("SLURM_PROCID", "0"), ("SLURM_NTASKS", "1")];
    assert_eq!(with(&daemon).unwrap().unwrap().launcher, Launcher::OpenMpi);
    let error = with(&[("RANK", "0"), ("WORLD_SIZE", "2")]).unwrap_err().to_string();
    let expected =
        "launcher: RANK: expected rank 1 of 2 as OMPI_COMM_WORLD_RANK says, received rank 0 of 2";
    assert_eq!(error, expected);
}

#[test]
fn missing_and_invalid_variables_are_named() {
    for (variables, message) in [
        (&[("RANK", "1")][..], "WORLD_SIZE: expected a value alongside RANK 1, received nothing"),
        (&[("PMI_SIZE", "4")], "PMI_RANK: expected a value alongside PMI_SIZE 4, received nothing"),
        (
            &[("RANK", "2"), ("WORLD_SIZE", "2")],
            "RANK: expected a number below WORLD_SIZE 2, received 2",
        ),
        (&[("RANK", "-1"), ("WORLD_SIZE", "2")], "RANK: expected a number up to"),
        (&[("RANK", "0"), ("WORLD_SIZE", "9999999999")], "WORLD_SIZE: expected a number up to"),
        (
            &[("RANK", "0"), ("WORLD_SIZE", "2"), ("LOCAL_RANK", "3"), ("LOCAL_WORLD_SIZE", "2")],
            "LOCAL_RANK: expected a number below LOCAL_WORLD_SIZE 2, of 2 in all, received 3",
        ),
        (&[("WORLD_SIZE", "2")], "RANK: expected a value alongside WORLD_SIZE 2, received nothing"),
        (
            &[("SLURM_STEP_ID", "0"), ("SLURM_PROCID", "1")],
            "SLURM_STEP_NUM_TASKS: expected a value alongside SLURM_PROCID 1, received nothing",
        ),
        (&[("TF_CONFIG", "{")], "TF_CONFIG: expected JSON"),
        (&[("TF_CONFIG", "{}")], "TF_CONFIG: expected a task with its type"),
        (
            &[(
                "TF_CONFIG",
                r#"{"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 1}}"#,
            )],
            "TF_CONFIG: expected a task of the cluster, received worker 1",
        ),
        (
            &[(
                "TF_CONFIG",
                r#"{"cluster": {"worker": "a:1"}, "task": {"type": "worker", "index": 0}}"#,
            )],
            "TF_CONFIG: expected a list of addresses",
        ),
    ] {
        let error = read(variables).unwrap_err().to_string();
        assert!(error.contains(message), "{error}");
    }
}

/// Otherwise every process would believe that it is the only one.
#[test]
fn a_launchers_variables_without_its_rank_and_size_are_refused() {
    for (variables, message) in [
        (
            &[("MASTER_ADDR", "a"), ("MASTER_PORT", "1")][..],
            "RANK: expected a value, and WORLD_SIZE, alongside MASTER_ADDR a, received nothing",
        ),
        (
            &[("MASTER_ADDR", "a")],
            "MASTER_PORT: expected a value alongside MASTER_ADDR a, received nothing",
        ),
        (&[("LOCAL_RANK", "0")], "RANK: expected a value alongside LOCAL_RANK 0, received nothing"),
        (
            &[("LOCAL_WORLD_SIZE", "2")],
            "RANK: expected a value alongside LOCAL_WORLD_SIZE 2, received nothing",
        ),
        (
            &[("OMPI_COMM_WORLD_LOCAL_RANK", "1")],
            "OMPI_COMM_WORLD_RANK: expected a value alongside OMPI_COMM_WORLD_LOCAL_RANK 1, received nothing",
        ),
        (
            &[("OMPI_COMM_WORLD_LOCAL_SIZE", "2")],
            "OMPI_COMM_WORLD_RANK: expected a value alongside OMPI_COMM_WORLD_LOCAL_SIZE 2, received nothing",
        ),
        (
            &[("MPI_LOCALRANKID", "1")],
            "PMI_RANK: expected a value alongside MPI_LOCALRANKID 1, received nothing",
        ),
        (
            &[("MPI_LOCALNRANKS", "2")],
            "PMI_RANK: expected a value alongside MPI_LOCALNRANKS 2, received nothing",
        ),
        (
            &[("SLURM_STEP_ID", "0"), ("SLURM_LOCALID", "1")],
            "SLURM_PROCID: expected a value alongside SLURM_STEP_ID 0, received nothing",
        ),
        (
            &[("SLURM_STEP_ID", "0"), ("SLURM_NTASKS", "2")],
            "SLURM_PROCID: expected a value alongside SLURM_STEP_NUM_TASKS 2, received nothing",
        ),
        (
            &[("SLURM_PROCID", "0"), ("SLURM_NTASKS", "4"), ("LOCAL_RANK", "1")],
            "RANK: expected a value alongside LOCAL_RANK 1, received nothing",
        ),
    ] {
        let error = read(variables).unwrap_err().to_string();
        assert_eq!(error, format!("launcher: {message}"));
    }
}

#[test]
fn slurm_variables_count_only_if_no_other_launcher_sets_any() {
    let step = [
        ("SLURM_STEP_ID", "0"),
        ("SLURM_PROCID", "0"),
        ("SLURM_STEP_NUM_TASKS", "2"),
        ("SLURM_LOCALID", "0"),
        ("SLURM_STEP_TASKS_PER_NODE", "1(x2)"),
    ];
    let with = |more: &[(&'static str, &'static str)]| {
        let found = read(&[&step[..], more].concat()).unwrap().unwrap();
        (found.launcher, found.rank, found.size, found.local_rank, found.local_size)
    };
    assert_eq!(with(&[]), (Launcher::Slurm, 0, 2, 0, 1));
    let torch =
        [("RANK", "1"), ("WORLD_SIZE", "4"), ("LOCAL_RANK", "1"), ("LOCAL_WORLD_SIZE", "2")];
    assert_eq!(with(&torch), (Launcher::Torch, 1, 4, 1, 2));
    let pmi = [("PMI_RANK", "3"), ("PMI_SIZE", "4"), ("MPI_LOCALRANKID", "1")];
    assert_eq!(with(&pmi), (Launcher::Pmi, 3, 4, 1, 2));
    assert_eq!(with(&[("TF_CONFIG", TF)]), (Launcher::TfConfig, 2, 3, 1, 2));
    // srun --mpi=pmi2 sets these for everything it starts.
    let sruns = [("PMI_RANK", "0"), ("PMI_SIZE", "2")];
    assert_eq!(with(&sruns), (Launcher::Slurm, 0, 2, 0, 1));
    assert_eq!(with(&[&sruns[..], &torch].concat()), (Launcher::Torch, 1, 4, 1, 2));
    // Missing variables of Slurm do not matter then either.
    assert_eq!(read(&[&step[..1], &torch].concat()).unwrap().unwrap().rank, 1);
}

#[test]
fn local_numbers_may_not_contradict_either() {
    let both = [
        ("OMPI_COMM_WORLD_RANK", "1"),
        ("OMPI_COMM_WORLD_SIZE", "4"),
        ("RANK", "1"),
        ("WORLD_SIZE", "4"),
    ];
    let with = |more: &[(&'static str, &'static str)]| read(&[&both[..], more].concat());
    let ompi = [("OMPI_COMM_WORLD_LOCAL_RANK", "1"), ("OMPI_COMM_WORLD_LOCAL_SIZE", "2")];
    let place = |more: &[(&'static str, &'static str)]| {
        let found = with(&[&ompi[..], more].concat()).unwrap().unwrap();
        (found.local_rank, found.local_size)
    };
    assert_eq!(place(&[]), (1, 2));
    assert_eq!(place(&[("LOCAL_RANK", "1"), ("LOCAL_WORLD_SIZE", "2")]), (1, 2));
    // Only one launcher sets them.
    let torch = with(&[("LOCAL_RANK", "1"), ("LOCAL_WORLD_SIZE", "2")]).unwrap().unwrap();
    assert_eq!((torch.local_rank, torch.local_size), (1, 2));
    let (rank, size) = (("LOCAL_RANK", "0"), ("LOCAL_WORLD_SIZE", "4"));
    for (more, message) in [
        (rank, "LOCAL_RANK: expected 1 as OMPI_COMM_WORLD_LOCAL_RANK says, received 0"),
        (size, "LOCAL_WORLD_SIZE: expected 2 as OMPI_COMM_WORLD_LOCAL_SIZE says, received 4"),
    ] {
        let error = with(&[&ompi[..], &[more]].concat()).unwrap_err().to_string();
        assert_eq!(error, format!("launcher: {message}"));
    }
    for (more, message) in [
        (("LOCAL_RANK", "4"), "LOCAL_RANK: expected a number below the 4 in all, received 4"),
        (
            ("LOCAL_WORLD_SIZE", "0"),
            "LOCAL_WORLD_SIZE: expected a number from 1 to the 4 in all, received 0",
        ),
    ] {
        assert_eq!(with(&[more]).unwrap_err().to_string(), format!("launcher: {message}"));
    }
}

#[test]
fn tf_configs_addresses_have_ports_and_come_once() {
    let with = |list: &str| {
        let task = r#""task": {"type": "worker", "index": 0}"#;
        read(&[("TF_CONFIG", &format!(r#"{{"cluster": {{{list}}}, {task}}}"#))])
    };
    let found = with(r#""worker": ["[::1]:1", "[::1]:2"]"#).unwrap().unwrap();
    assert_eq!((found.chief_addr, found.local_size), (Some(("[::1]".into(), 1)), 2));
    let ports = "addresses as host:port, received";
    for (list, message) in [
        (r#""worker": ["a", "b"]"#, format!(r#"{ports} "a""#)),
        (r#""worker": ["a:1", "b:"]"#, format!(r#"{ports} "b:""#)),
        (r#""worker": ["a:0"]"#, format!(r#"{ports} "a:0""#)),
        (r#""worker": ["a:65536"]"#, format!(r#"{ports} "a:65536""#)),
        (r#""worker": [":1"]"#, format!(r#"{ports} ":1""#)),
        (r#""worker": ["::1"]"#, format!(r#"{ports} "::1""#)),
        (r#""worker": [7]"#, format!("{ports} 7")),
        (r#""worker": ["a:1", "a:1"]"#, r#"every address once, received "a:1" twice"#.into()),
        (
            r#""chief": ["a:1"], "worker": ["a:1"]"#,
            r#"every address once, received "a:1" twice"#.into(),
        ),
    ] {
        let error = with(list).unwrap_err().to_string();
        assert_eq!(error, format!("launcher: TF_CONFIG: expected {message}"));
    }
}

/// Derives the tasks of a node from the list for all nodes and the node's index.
#[test]
fn slurm_lists_the_tasks_of_every_node() {
    for (tasks, node, local_size) in [
        ("2,4", Some("0"), Ok(2)),
        ("2,4", Some("1"), Ok(4)),
        ("2(x3),1", Some("2"), Ok(2)),
        ("2(x3),1", Some("3"), Ok(1)),
        ("1,2(x2),4", Some("2"), Ok(2)),
        ("3(x2)", None, Ok(3)),
        // Unknown without the node's index: the smallest possible number.
        ("2,4", None, Ok(1)),
        ("2(x3),1", Some("4"), Err("SLURM_NODEID: expected a number below the 4")),
        ("2(x3),1", Some("-1"), Err("SLURM_NODEID: expected a number up to")),
        ("2(x", Some("0"), Err("SLURM_STEP_TASKS_PER_NODE: expected a number up to")),
        ("2(x3", Some("0"), Err("received 2(x3")),
        (",", Some("0"), Err("SLURM_STEP_TASKS_PER_NODE: expected a number up to")),
    ] {
        let mut variables = vec![
            ("SLURM_STEP_ID", "0"),
            ("SLURM_PROCID", "1"),
            ("SLURM_STEP_NUM_TASKS", "7"),
            ("SLURM_LOCALID", "0"),
            ("SLURM_STEP_TASKS_PER_NODE", tasks),
        ];
        variables.extend(node.map(|node| ("SLURM_NODEID", node)));
        match (read(&variables), local_size) {
            (Ok(found), Ok(size)) => {
                assert_eq!(found.unwrap().local_size, size, "{tasks} {node:?}")
            }
            (Err(error), Err(message)) => assert!(error.to_string().contains(message), "{error}"),
            (found, _) => panic!("{tasks} {node:?}: {found:?}"),
        }
    }
}

/// Any launch that is accepted is a valid one, whatever the variables contain.
#[test]
fn any_variables_give_a_valid_launch_or_an_error() {
    let names = [
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "PMI_RANK",
        "PMI_SIZE",
        "SLURM_PROCID",
        "SLURM_NTASKS",
        "SLURM_LOCALID",
        "SLURM_STEP_TASKS_PER_NODE",
        "RANK",
        "WORLD_SIZE",
        "LOCAL_RANK",
        "LOCAL_WORLD_SIZE",
        "SLURM_STEP_ID",
        "SLURM_NODEID",
        "TF_CONFIG",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "MPI_LOCALRANKID",
        "MASTER_ADDR",
        "MASTER_PORT",
    ];
    let texts = [
        "0",
        "1",
        "2",
        "3",
        "-1",
        "",
        " ",
        "x",
        "2(x2)",
        "1,1",
        "99999999999999999999",
        TF,
        "{",
        "\u{0}",
    ];
    let (mut places, mut errors) = (0, 0);
    for case in 0..20_000u32 {
        let mut random = phalanx_graph::rng::Stream::new(1, 0, 7, case);
        let mut pick = |most: u64| -> Vec<(&str, &str)> {
            let mut one = || {
                let name = names[random.below(names.len() as u64) as usize];
                (name, texts[random.below(texts.len() as u64) as usize])
            };
            (0..most).map(|_| one()).collect()
        };
        // Every other case starts from valid variables of a launcher.
        let mut picked = match case % 2 {
            0 => vec![],
            _ => vec![("RANK", "1"), ("WORLD_SIZE", "3")],
        };
        picked.extend(pick(u64::from(case / 2 % 6)));
        match read(&picked) {
            Ok(Some(l)) => {
                places += 1;
                assert!(l.rank < l.size && l.local_rank < l.local_size, "{picked:?}: {l:?}");
                assert!(l.local_size <= l.size, "{picked:?}: {l:?}");
            }
            Ok(None) => {}
            Err(error) => {
                errors += 1;
                assert!(error.to_string().starts_with("launcher: "), "{picked:?}: {error}");
            }
        }
    }
    assert!(places > 500 && errors > 500, "{places} places, {errors} errors");
}
