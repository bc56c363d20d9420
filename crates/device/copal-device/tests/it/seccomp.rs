//! Runs a test on a thread that may not use io_uring, as in most containers.
#![expect(unsafe_code, reason = "installs a seccomp filter for one thread")]

/// Offset of the system call's number in the data a filter sees.
const NUMBER_AT: u32 = 0;

/// Runs `body` on a thread (and its children) for which `io_uring_setup` fails with EPERM.
pub(crate) fn without_io_uring(body: impl FnOnce() + Send) -> std::thread::Result<()> {
    std::thread::scope(|scope| {
        scope
            .spawn(|| {
                install();
                body();
            })
            .join()
    })
}

fn install() {
    let jump = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
    let load = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
    let ret = (libc::BPF_RET | libc::BPF_K) as u16;
    let refuse = libc::SECCOMP_RET_ERRNO | libc::EPERM as u32;
    let filter = [
        libc::sock_filter { code: load, jt: 0, jf: 0, k: NUMBER_AT },
        libc::sock_filter { code: jump, jt: 0, jf: 1, k: libc::SYS_io_uring_setup as u32 },
        libc::sock_filter { code: ret, jt: 0, jf: 0, k: refuse },
        libc::sock_filter { code: ret, jt: 0, jf: 0, k: libc::SECCOMP_RET_ALLOW },
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_ptr().cast_mut() };
    // SAFETY: sets a flag of this thread.
    let fixed = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
    assert_eq!(fixed, 0);
    // SAFETY: the kernel copies the program, which lives until the call returns.
    let set = unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) };
    assert_eq!(set, 0, "{}", std::io::Error::last_os_error());
}
