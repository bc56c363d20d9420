//! The operations of S3 on the buckets in memory. One call runs alone, so that conditions are atomic.

use super::{
    access::{AccessTable, KeyRights},
    dates::http_date,
    errors::{
        ACCESS_DENIED, LENGTH_REQUIRED, MALFORMED_XML, NO_SUCH_KEY, NOT_IMPLEMENTED, S3Error,
        invalid_argument,
    },
    http::HttpAnswer,
    listing::{list_objects, list_uploads},
    objects::{ObjectCondition, ObjectStore, ServerTime, etag_matches},
    requests::S3Request,
    uploads::NamedPart,
    xml,
};

/// Most keys of one request to delete.
const MOST_DELETED_KEYS: usize = 1000;
/// Highest number of a part.
const MOST_PARTS: usize = 10_000;

/// Conditions that the server ignores, as some stores do.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct StoreDefects {
    pub(super) ignores_put_conditions: bool,
    pub(super) ignores_complete_conditions: bool,
    pub(super) ignores_delete_conditions: bool,
}

/// Buckets, access keys and defects: all that the answer to a request depends on.
#[derive(Debug, Default)]
pub(super) struct SharedStore {
    pub(super) objects: ObjectStore,
    pub(super) access: AccessTable,
    pub(super) defects: StoreDefects,
    /// Answers to writes name the version of the object.
    pub(super) names_versions: bool,
    /// Seconds by which the server's clock is ahead.
    pub(super) clock_offset: i64,
}

impl SharedStore {
    /// Runs one request.
    pub(super) fn answer(&mut self, request: &S3Request, now: ServerTime) -> HttpAnswer {
        self.run(request, now).unwrap_or_else(|error| error_answer(&error, &request.http.path))
    }

    fn run(&mut self, request: &S3Request, now: ServerTime) -> Result<HttpAnswer, S3Error> {
        let rights = self.access.rights(&request.http)?;
        let method = request.http.method.as_str();
        if request.bucket.is_empty() || request.is_of_other_resource() {
            return Err(NOT_IMPLEMENTED);
        }
        if method == "PUT" && request.key.is_empty() {
            require(rights.create)?;
            self.objects.create_bucket(&request.bucket)?;
            return Ok(HttpAnswer::empty(200).with("Location", format!("/{}", request.bucket)));
        }
        self.objects.bucket(&request.bucket)?;
        match request.key.is_empty() {
            true => self.run_on_bucket(request, rights, now),
            false => self.run_on_key(request, rights, now),
        }
    }

    fn run_on_bucket(
        &mut self,
        request: &S3Request,
        rights: KeyRights,
        now: ServerTime,
    ) -> Result<HttpAnswer, S3Error> {
        let objects = self.objects.bucket(&request.bucket)?;
        let has = |name| request.parameter(name).is_some();
        match request.http.method.as_str() {
            "HEAD" => require(rights.list).map(|()| HttpAnswer::empty(200)),
            "GET" if has("uploads") => {
                require(rights.list)?;
                Ok(HttpAnswer::xml(200, list_uploads(objects, request)?))
            }
            "GET" if request.parameter("list-type") == Some("2") => {
                require(rights.list)?;
                Ok(HttpAnswer::xml(200, list_objects(objects, request, now)?))
            }
            "POST" if has("delete") => {
                require(rights.delete)?;
                self.delete_many(request, now)
            }
            _ => Err(NOT_IMPLEMENTED),
        }
    }

    fn run_on_key(
        &mut self,
        request: &S3Request,
        rights: KeyRights,
        now: ServerTime,
    ) -> Result<HttpAnswer, S3Error> {
        let upload = request.parameter("uploadId");
        match (request.http.method.as_str(), upload) {
            ("GET" | "HEAD", None) => {
                require(rights.read)?;
                self.get(request)
            }
            ("PUT", None) => {
                require_write(rights, request)?;
                self.put(request, now)
            }
            ("DELETE", None) => {
                require(rights.delete)?;
                let ignores = self.defects.ignores_delete_conditions;
                let condition = if ignores { ObjectCondition::default() } else { request.condition() };
                self.objects.delete(request.place(), &condition, now)?;
                Ok(HttpAnswer::empty(204))
            }
            ("POST", None) if request.parameter("uploads").is_some() => {
                require(rights.create)?;
                self.start_upload(request, now)
            }
            ("PUT", Some(id)) => {
                require(rights.create)?;
                self.put_part(request, id)
            }
            ("POST", Some(id)) => {
                require_write(rights, request)?;
                self.complete(request, id, now)
            }
            ("DELETE", Some(id)) => {
                require(rights.create)?;
                self.objects.bucket_mut(&request.bucket)?.uploads.end((&request.key, id))?;
                Ok(HttpAnswer::empty(204))
            }
            _ => Err(NOT_IMPLEMENTED),
        }
    }

    fn get(&self, request: &S3Request) -> Result<HttpAnswer, S3Error> {
        let object = self.objects.bucket(&request.bucket)?.object(&request.key).ok_or(NO_SUCH_KEY)?;
        let condition = request.condition();
        ObjectCondition { if_none_match: None, ..condition.clone() }.check(Some(object))?;
        if condition.if_none_match.is_some_and(|etags| etag_matches(&etags, &object.etag)) {
            return Ok(HttpAnswer::empty(304).with("ETag", &object.etag));
        }
        let size = object.body.len();
        let answer = match request.range(size) {
            Ok(None) => HttpAnswer { body: object.body.to_vec(), ..HttpAnswer::empty(200) },
            Ok(Some((first, len))) => {
                let body = object.body[first..first + len].to_vec();
                let range = format!("bytes {first}-{}/{size}", first + len - 1);
                HttpAnswer { body, ..HttpAnswer::empty(206) }.with("Content-Range", range)
            }
            Err(error) => {
                return Ok(
                    error_answer(&error, &request.http.path).with("Content-Range", format!("bytes */{size}"))
                );
            }
        };
        Ok(answer
            .with("ETag", &object.etag)
            .with("Last-Modified", http_date(object.modified))
            .with("Accept-Ranges", "bytes")
            .with("Content-Type", "application/octet-stream"))
    }

    fn put(&mut self, request: &S3Request, now: ServerTime) -> Result<HttpAnswer, S3Error> {
        let body = body_with_length(request)?;
        let condition = match self.defects.ignores_put_conditions {
            true => ObjectCondition::default(),
            false => request.write_condition()?,
        };
        let etag = self.objects.write(request.place(), body, &condition, now)?;
        let answer = HttpAnswer::empty(200).with("ETag", etag);
        Ok(self.name_version(answer))
    }

    fn name_version(&mut self, answer: HttpAnswer) -> HttpAnswer {
        match self.names_versions {
            true => answer.with("x-amz-version-id", self.objects.next_id()),
            false => answer,
        }
    }

    fn start_upload(&mut self, request: &S3Request, now: ServerTime) -> Result<HttpAnswer, S3Error> {
        let id = self.objects.next_id();
        let mut content = String::new();
        xml::push(&mut content, "Bucket", &request.bucket);
        xml::push(&mut content, "Key", &request.key);
        xml::push(&mut content, "UploadId", &id);
        self.objects.bucket_mut(&request.bucket)?.uploads.start(id, &request.key, now.unix);
        Ok(HttpAnswer::xml(200, xml::document("InitiateMultipartUploadResult", &content)))
    }

    fn put_part(&mut self, request: &S3Request, id: &str) -> Result<HttpAnswer, S3Error> {
        let number = request.number("partNumber")?.filter(|number| (1..=MOST_PARTS).contains(number));
        let number = number.ok_or(invalid_argument("The part number is not in 1 to 10000."))?;
        let body = body_with_length(request)?;
        let etag = format!("\"{}\"", self.objects.next_id());
        let uploads = &mut self.objects.bucket_mut(&request.bucket)?.uploads;
        uploads.put_part((&request.key, id), number as u32, etag.clone(), body)?;
        Ok(HttpAnswer::empty(200).with("ETag", etag))
    }

    /// A completion that fails leaves the upload open.
    fn complete(&mut self, request: &S3Request, id: &str, now: ServerTime) -> Result<HttpAnswer, S3Error> {
        let named = named_parts(&request.http.body).ok_or(MALFORMED_XML)?;
        let place = (request.key.as_str(), id);
        let body = self.objects.bucket(&request.bucket)?.uploads.assemble(place, &named)?;
        let condition = match self.defects.ignores_complete_conditions {
            true => ObjectCondition::default(),
            false => request.write_condition()?,
        };
        let etag = self.objects.write(request.place(), body, &condition, now)?;
        self.objects.bucket_mut(&request.bucket)?.uploads.end(place)?;
        let mut content = String::new();
        xml::push(&mut content, "Location", &format!("/{}/{}", request.bucket, request.key));
        xml::push(&mut content, "Bucket", &request.bucket);
        xml::push(&mut content, "Key", &request.key);
        xml::push(&mut content, "ETag", &etag);
        let answer = HttpAnswer::xml(200, xml::document("CompleteMultipartUploadResult", &content));
        Ok(self.name_version(answer))
    }

    fn delete_many(&mut self, request: &S3Request, now: ServerTime) -> Result<HttpAnswer, S3Error> {
        let body = std::str::from_utf8(&request.http.body).map_err(|_| MALFORMED_XML)?;
        let named = xml::elements(body, "Object");
        if named.is_empty() || named.len() > MOST_DELETED_KEYS {
            return Err(MALFORMED_XML);
        }
        let keys: Option<Vec<String>> = named.iter().map(|object| xml::text(object, "Key")).collect();
        let is_quiet = xml::text(body, "Quiet").is_some_and(|text| text.trim() == "true");
        let mut content = String::new();
        for (key, object) in keys.ok_or(MALFORMED_XML)?.iter().zip(named) {
            let if_match = xml::text(object, "ETag").filter(|_| !self.defects.ignores_delete_conditions);
            let condition = ObjectCondition { if_match, if_none_match: None };
            let mut entry = String::new();
            xml::push(&mut entry, "Key", key);
            match self.objects.delete((&request.bucket, key), &condition, now) {
                Ok(_) if is_quiet => {}
                Ok(_) => content += &format!("<Deleted>{entry}</Deleted>"),
                Err(error) => {
                    xml::push(&mut entry, "Code", &error.code);
                    xml::push(&mut entry, "Message", error.message);
                    content += &format!("<Error>{entry}</Error>");
                }
            }
        }
        Ok(HttpAnswer::xml(200, xml::document("DeleteResult", &content)))
    }
}

/// An error as S3 sends it. `path`: the address of the request.
pub(super) fn error_answer(error: &S3Error, path: &str) -> HttpAnswer {
    let mut content = String::new();
    xml::push(&mut content, "Code", &error.code);
    xml::push(&mut content, "Message", error.message);
    xml::push(&mut content, "Resource", path);
    HttpAnswer::xml(error.status, xml::error_document(&content))
}

fn require(right: bool) -> Result<(), S3Error> {
    if right { Ok(()) } else { Err(ACCESS_DENIED) }
}

/// A write that can replace an object needs another right than one that only creates.
fn require_write(rights: KeyRights, request: &S3Request) -> Result<(), S3Error> {
    let condition = request.condition();
    let only_creates = condition.if_none_match.as_deref() == Some("*");
    let only_replaces = condition.if_match.is_some();
    require((rights.create || only_replaces) && (rights.overwrite || only_creates))
}

fn body_with_length(request: &S3Request) -> Result<Vec<u8>, S3Error> {
    match request.http.has_length {
        true => Ok(request.http.body.clone()),
        false => Err(LENGTH_REQUIRED),
    }
}

fn named_parts(body: &[u8]) -> Option<Vec<NamedPart>> {
    let body = std::str::from_utf8(body).ok()?;
    let named = xml::elements(body, "Part").into_iter().map(|part| {
        let number = xml::text(part, "PartNumber")?.trim().parse().ok()?;
        Some((number, xml::text(part, "ETag")?))
    });
    named.collect()
}
