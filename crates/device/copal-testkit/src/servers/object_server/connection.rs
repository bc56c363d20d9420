//! One connection: reads requests, applies faults, logs, answers.

use super::{
    dates::http_date,
    errors::S3Error,
    faults::{NetworkFault, RequestFacts},
    http::{HttpAnswer, HttpRequest, ReadFailure, read_request},
    operations::error_answer,
    requests::S3Request,
    state::{LoggedRequest, ServerState},
};
use std::{
    io::{self, BufReader, Read, Write},
    net::{Shutdown, TcpStream},
    sync::Arc,
    thread,
    time::Duration,
};

/// Most bytes of a refused body that are read, so that the client sees the answer before the end.
const MOST_DRAINED_BYTES: u64 = 128 << 20;
/// Longest wait for bytes of a refused body.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(1);

/// The way in which an answer is sent.
enum AnswerDelivery {
    Whole,
    /// Nothing is sent and the connection ends.
    Lost,
    /// That many bytes of the body, then the end of the connection.
    Cut(usize),
    /// The second half after a pause.
    Stalled(Duration),
}

/// Serves a connection up to its end.
pub(super) fn serve(state: &Arc<ServerState>, stream: &TcpStream) -> io::Result<()> {
    let Some(_open) = state.open(stream)? else { return Ok(()) };
    stream.set_nodelay(true)?;
    let mut writer = stream;
    let mut reader = BufReader::new(stream);
    loop {
        match read_request(&mut reader, &mut writer) {
            Ok(request) => {
                let keeps_alive = request.keeps_alive;
                if !serve_request(state, writer, request)? || !keeps_alive {
                    return Ok(());
                }
            }
            Err(ReadFailure::Closed) => return Ok(()),
            Err(ReadFailure::Refused(error)) => return refuse(state, writer, &mut reader, &error),
        }
    }
}

/// Answers a request whose end is unknown, and ends the connection.
fn refuse(
    state: &ServerState,
    mut stream: &TcpStream,
    reader: &mut impl Read,
    error: &S3Error,
) -> io::Result<()> {
    let answer = error_answer(error, "").with("Connection", "close");
    let answer = finish(state, answer, state.next_request());
    stream.write_all(&[answer.head(), answer.body].concat())?;
    stream.shutdown(Shutdown::Write)?;
    stream.set_read_timeout(Some(DRAIN_TIMEOUT))?;
    io::copy(&mut reader.take(MOST_DRAINED_BYTES), &mut io::sink())?;
    Ok(())
}

/// Serves one request; returns whether the connection stays open.
fn serve_request(state: &Arc<ServerState>, stream: &TcpStream, http: HttpRequest) -> io::Result<bool> {
    let number = state.next_request();
    let (is_head, path) = (http.method == "HEAD", http.path.clone());
    let request = match S3Request::new(http) {
        Ok(request) => request,
        Err(error) => {
            let answer = finish(state, error_answer(&error, &path), number);
            return send(state, stream, &answer, is_head, &AnswerDelivery::Whole);
        }
    };
    let (answer, delivery) = match state.fault(&facts(&request, number)) {
        NetworkFault::None => (Some(state.execute(&request)), AnswerDelivery::Whole),
        NetworkFault::LoseRequest => (None, AnswerDelivery::Lost),
        NetworkFault::LoseAnswer => (Some(state.execute(&request)), AnswerDelivery::Lost),
        NetworkFault::Twice => {
            state.execute(&request);
            (Some(state.execute(&request)), AnswerDelivery::Whole)
        }
        NetworkFault::CutAnswer(bytes) => (Some(state.execute(&request)), AnswerDelivery::Cut(bytes)),
        NetworkFault::Delay(time) => {
            if state.wait(time) {
                return Ok(false);
            }
            (Some(state.execute(&request)), AnswerDelivery::Whole)
        }
        NetworkFault::Stall(time) => (Some(state.execute(&request)), AnswerDelivery::Stalled(time)),
        NetworkFault::Refuse { status, code } => {
            let error = S3Error::by_test(status, code);
            (Some(error_answer(&error, &path)), AnswerDelivery::Whole)
        }
        NetworkFault::LateEffect(time) => {
            log(state, &request, 0, 0);
            execute_later(state, request, time)?;
            return Ok(false);
        }
    };
    let Some(answer) = answer else {
        log(state, &request, 0, 0);
        return Ok(false);
    };
    let answer = finish(state, answer, number);
    let bytes_out = match delivery {
        _ if is_head => 0,
        AnswerDelivery::Lost => 0,
        AnswerDelivery::Cut(bytes) => bytes.min(answer.body.len()),
        AnswerDelivery::Whole | AnswerDelivery::Stalled(_) => answer.body.len(),
    };
    // The test that sees the answer also sees it in the log.
    log(state, &request, answer.status, bytes_out);
    send(state, stream, &answer, is_head, &delivery)
}

fn facts(request: &S3Request, number: u64) -> RequestFacts {
    let has = |name| request.http.header(name).is_some();
    RequestFacts {
        number,
        method: request.http.method.clone(),
        bucket: request.bucket.clone(),
        key: request.key.clone(),
        query: request.http.query.clone(),
        has_condition: has("if-match") || has("if-none-match"),
        body_bytes: request.http.body.len(),
    }
}

fn log(state: &ServerState, request: &S3Request, status: u16, bytes_out: usize) {
    state.log.lock().push(LoggedRequest {
        method: request.http.method.clone(),
        bucket: request.bucket.clone(),
        key: request.key.clone(),
        query: request.http.query.clone(),
        status,
        bytes_in: request.http.body.len(),
        bytes_out,
    });
}

/// Adds the headers that every answer has.
fn finish(state: &ServerState, answer: HttpAnswer, number: u64) -> HttpAnswer {
    let date = http_date(state.now().unix);
    answer
        .with("Date", date)
        .with("x-amz-request-id", format!("{number:016X}"))
        .with("Server", "copal-testkit")
}

/// A request takes effect after the end of its connection, unless the server stops before.
fn execute_later(state: &Arc<ServerState>, request: S3Request, time: Duration) -> io::Result<()> {
    let state = Arc::clone(state);
    let run = move || {
        if !state.wait(time) {
            state.execute(&request);
        }
    };
    thread::Builder::new().name("late request".into()).spawn(run).map(drop)
}

/// Sends an answer; returns whether the connection stays open.
fn send(
    state: &ServerState,
    mut stream: &TcpStream,
    answer: &HttpAnswer,
    is_head: bool,
    delivery: &AnswerDelivery,
) -> io::Result<bool> {
    let head = answer.head();
    let body = if is_head { &[][..] } else { &answer.body };
    match *delivery {
        AnswerDelivery::Whole => {
            stream.write_all(&[&head, body].concat())?;
            Ok(true)
        }
        AnswerDelivery::Lost => Ok(false),
        AnswerDelivery::Cut(bytes) => {
            stream.write_all(&[&head, &body[..bytes.min(body.len())]].concat())?;
            Ok(false)
        }
        AnswerDelivery::Stalled(time) => {
            let all = [&head, body].concat();
            let (first, second) = all.split_at(all.len() / 2);
            stream.write_all(first)?;
            if state.wait(time) {
                return Ok(false);
            }
            stream.write_all(second)?;
            Ok(true)
        }
    }
}
