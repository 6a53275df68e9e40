import ApusCore
import ApusCrypto
import ApusObjectStore
import Testing

/// Requests with their signatures.
private enum SignedRequests {
    struct Vector: Sendable {
        var name: String
        var request: S3Signature.Request
        var canonical: String?
        var signature: String
    }

    static func s3(
        _ name: String, _ method: String, _ path: String, query: [(name: String, value: String)] = [],
        headers: [(name: String, value: String)] = [], body: String = "", canonical: String? = nil, _ signature: String
    ) -> Vector {
        let digest = Hexadecimal.text(SHA256.hash(data: Array(body.utf8)))
        let all = [
            ("host", "examplebucket.s3.amazonaws.com"), ("x-amz-content-sha256", digest),
            ("x-amz-date", "20130524T000000Z"),
        ]
        return Vector(
            name: name,
            request: S3Signature.Request(
                method: method, path: path, query: query, headers: all.map { ($0.0, $0.1) } + headers,
                bodyDigest: digest), canonical: canonical, signature: signature)
    }

    // Amazon S3 API Reference, "Authenticating Requests: Using the Authorization Header", single chunk.
    static let all: [Vector] = [
        s3(
            "an object's range", "GET", "/test.txt", headers: [("range", "bytes=0-9")],
            canonical: "7344ae5b7ee6c3e7e6b0fe0640412a37625d1fbfff95c48bbb2dc43964946972",
            "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41"),
        s3(
            "an object is put", "PUT", "/test$file.text",
            headers: [("date", "Fri, 24 May 2013 00:00:00 GMT"), ("x-amz-storage-class", "REDUCED_REDUNDANCY")],
            body: "Welcome to Amazon S3.",
            canonical: "9e0e90d9c76de8fa5b200d8c849cd5b8dc7a3be3951ddb7f6a76b4158342019d",
            "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd"),
        s3(
            "a query without a value", "GET", "/", query: [("lifecycle", "")],
            canonical: "9766c798316ff2757b517bc739a67f6213b4ab36dd5da2f94eaebf79c77395ca",
            "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543"),
        s3(
            "a list", "GET", "/", query: [("prefix", "J"), ("max-keys", "2")],
            canonical: "df57d21db20da04d7fa30298dd4488ba3a2b47ca3a489c74750e0f1e7df1b9b7",
            "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7"),
    ]
}

@Suite("AWS Signature Version 4: the vectors that AWS has published")
struct S3SignatureTests {
    private static let secret = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"
    private static let empty = Hexadecimal.text(SHA256.hash(data: [UInt8]()))

    @Test("Requests of the S3 reference have its signatures", arguments: SignedRequests.all.indices)
    func reference(_ index: Int) {
        let vector = SignedRequests.all[index]
        let keys = S3Credentials(accessKeyID: "AKIAIOSFODNN7EXAMPLE", secretKey: Self.secret)
        if let canonical = vector.canonical {
            let digest = SHA256.hash(data: Array(S3Signature.canonical(vector.request).utf8))
            #expect(Hexadecimal.text(digest) == canonical, "\(vector.name): \(S3Signature.canonical(vector.request))")
        }
        let signature = S3Signature(credentials: keys, region: "us-east-1")
        let value = signature.authorization(of: vector.request, time: "20130524T000000Z")
        #expect(value.hasSuffix("Signature=\(vector.signature)"), "\(vector.name)")
        #expect(
            value.hasPrefix(
                "AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request, SignedHeaders="))
    }

    // The test suite of Signature Version 4, and "Create a signed AWS API request" of the IAM User Guide.
    @Test("The example of IAM and get-vanilla have their keys and signatures")
    func others() {
        let keys = S3Credentials(
            accessKeyID: "AKIDEXAMPLE", secretKey: "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY")
        let iam = S3Signature(credentials: keys, region: "us-east-1", service: "iam")
        #expect(
            Hexadecimal.text(iam.key(day: "20150830"))
                == "c4afb1cc5771d871763a393e44b703571b55cc28424d1a5e86da6ed3c154a4b9")
        let list = S3Signature.Request(
            method: "GET", path: "/", query: [("Action", "ListUsers"), ("Version", "2010-05-08")],
            headers: [
                ("content-type", "application/x-www-form-urlencoded; charset=utf-8"), ("host", "iam.amazonaws.com"),
                ("x-amz-date", "20150830T123600Z"),
            ], bodyDigest: Self.empty)
        #expect(
            iam.authorization(of: list, time: "20150830T123600Z")
                .hasSuffix("Signature=5d672d79c15b13162d9279b0855cfba6789a8edb4c82c400e06b5924a6f2b5d7"))
        let service = S3Signature(credentials: keys, region: "us-east-1", service: "service")
        let vanilla = S3Signature.Request(
            method: "GET", path: "/",
            headers: [("host", "example.amazonaws.com"), ("x-amz-date", "20150830T123600Z")], bodyDigest: Self.empty)
        #expect(
            service.authorization(of: vanilla, time: "20150830T123600Z")
                == "AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20150830/us-east-1/service/aws4_request, "
                + "SignedHeaders=host;x-amz-date, "
                + "Signature=5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31")
    }

    @Test("Times are written and read as the calendar has them")
    func times() {
        #expect(S3Time.signed(0) == "19700101T000000Z" && S3Time.signed(1_369_353_600) == "20130524T000000Z")
        #expect(S3Time.signed(951_782_399) == "20000228T235959Z" && S3Time.signed(951_782_400) == "20000229T000000Z")
        #expect(S3Time.signed(-1) == "19691231T235959Z")
        #expect(S3Time.milliseconds(header: "Wed, 12 Oct 2009 17:50:00 GMT") == 1_255_369_800_000)
        #expect(S3Time.milliseconds(list: "2009-10-12T17:50:30.123Z") == 1_255_369_830_123)
        #expect(S3Time.milliseconds(list: "2009-10-12T17:50:30Z") == 1_255_369_830_000)
        for wrong in ["", "2009-13-12T17:50:30Z", "2009-10-12 17:50:30Z", "2009-10-12T24:50:30Z", "x"] {
            #expect(S3Time.milliseconds(list: wrong) == nil)
        }
        #expect(S3Time.milliseconds(header: "Wed, 12 Okt 2009 17:50:00 GMT") == nil)
        var generator = SeededRandom(seed: 1)
        for _ in 0..<2_000 {
            let seconds = Int64.random(in: 0...10_000_000_000, using: &generator)
            let text = Array(S3Time.signed(seconds))
            let list =
                "\(String(text[0..<4]))-\(String(text[4..<6]))-\(String(text[6..<8]))T"
                + "\(String(text[9..<11])):\(String(text[11..<13])):\(String(text[13..<15])).000Z"
            guard text.count == 16 else { continue }
            #expect(S3Time.milliseconds(list: list) == seconds * 1000)
        }
    }

    @Test("Answers are read as XML, and what is no such document is refused with 10001")
    func documents() throws {
        let text = """
            <?xml version="1.0" encoding="UTF-8"?><!-- x -->
            <s3:ListBucketResult xmlns:s3="http://s3.amazonaws.com/doc/2006-03-01/"><IsTruncated>false</IsTruncated>
            <Contents><Key>a&amp;b&#x3c;&#62;</Key><Size>1</Size></Contents><Empty/><Contents><Key>c</Key></Contents>
            </s3:ListBucketResult>
            """
        let document = try S3Element(reading: Array(text.utf8))
        #expect(document.name == "ListBucketResult" && document.text("IsTruncated") == "false")
        #expect(document.all("Contents").map { $0.text("Key") } == ["a&b<>", "c"] && document.child("Empty") != nil)
        let deep = String(repeating: "<a>", count: 9) + String(repeating: "</a>", count: 9)
        let wide = "<a>" + String(repeating: "<b/>", count: S3Element.countMax) + "</a>"
        let entities = "<!DOCTYPE a [<!ENTITY x \"y\">]><a>&x;</a>"
        for wrong in [
            "", "<", "<a", "<a>", "<a></b>", "</a>", "<a>&x;</a>", "<a>&#xD800;</a>", "x", entities, deep, wide,
        ] {
            #expect(throws: ApusError(.malformed), "\(wrong.prefix(40))") { try S3Element(reading: Array(wrong.utf8)) }
        }
        for end in text.utf8.indices where end < text.utf8.index(before: text.utf8.endIndex) {
            #expect(throws: ApusError(.malformed)) { try S3Element(reading: Array(text.utf8[..<end])) }
        }
        var generator = SeededRandom(seed: 2)
        for _ in 0..<3_000 {
            var bytes = Array(text.utf8)
            for _ in 0..<3 {
                bytes[.random(in: bytes.indices, using: &generator)] = UInt8.random(in: 0...255, using: &generator)
            }
            _ = try? S3Element(reading: bytes)
        }
    }

    @Test("Statuses and codes decide whether a request is repeated")
    func verdicts() {
        func verdict(_ status: Int, _ code: String? = nil) -> S3Verdict { .of(status: status, code: code, place: "s3") }
        for status in [200, 204, 206, 404, 412, 416] { #expect(verdict(status) == .answer) }
        for status in [408, 409, 429, 500, 502, 503, 504] {
            guard case .again = verdict(status) else {
                Issue.record("\(status) is not repeated")
                continue
            }
        }
        for (status, code) in [(400, "RequestTimeout"), (400, "BadDigest"), (200, "InternalError")] {
            guard case .again = verdict(status, code) else {
                Issue.record("\(code) is not repeated")
                continue
            }
        }
        for (status, code) in [(403, "AccessDenied"), (403, "RequestTimeTooSkewed"), (400, "ExpiredToken")] {
            guard case .signAgain = verdict(status, code) else {
                Issue.record("\(code) does not renew the signature")
                continue
            }
        }
        #expect(verdict(507) == .fail(ApusError(.storageFull)))
        #expect(verdict(400, "QuotaExceeded") == .fail(ApusError(.storageFull)))
        #expect(verdict(413) == .fail(ApusError(.frameTooLarge)))
        for (status, code) in [
            (301, "PermanentRedirect"), (404, "NoSuchBucket"), (400, "InvalidArgument"), (501, "NotImplemented"),
        ] {
            #expect(verdict(status, code) == .fail(ApusError(.storageFailed)), "\(code)")
        }
        #expect(S3Verdict.of(ApusError(.cancelled)) == .fail(ApusError(.cancelled)))
    }

    @Test("Places, endpoints and both forms of addresses")
    func places() throws {
        var configuration = try S3Configuration(place: "s3://my-bucket/cameras/apus/")
        #expect(configuration.bucket == "my-bucket" && configuration.prefix == "cameras/apus")
        configuration.region = "eu-central-1"
        #expect(
            try configuration.target() == (
                "https://s3.eu-central-1.amazonaws.com", "s3.eu-central-1.amazonaws.com", "/my-bucket"
            ))
        configuration.addressing = .host
        #expect(try configuration.target().origin == "https://my-bucket.s3.eu-central-1.amazonaws.com")
        configuration.endpoint = "http://localhost:9000/"
        #expect(try configuration.target() == ("http://my-bucket.localhost:9000", "my-bucket.localhost:9000", ""))
        configuration.endpoint = "https://s3.example.org:443"
        #expect(try configuration.target().host == "my-bucket.s3.example.org")
        for wrong in ["", "localhost:9000", "ftp://x", "http://", "http://a/b", "http://a:b", "http://u@a"] {
            configuration.endpoint = wrong
            #expect(throws: ApusError(.configurationInvalid), "\(wrong)") { try configuration.target() }
        }
        for wrong in ["", "s3://", "s3://B", "s3:/bucket", "s3://bucket/../x", "s3://bucket//x", "/s3://bucket"] {
            #expect(throws: ApusError(.configurationInvalid), "\(wrong)") { try S3Configuration(place: wrong) }
        }
    }

    @Test("Keys come from the default section of a file, or from the environment")
    func credentials() throws {
        let text =
            "# x\n[other]\naws_access_key_id=no\naws_secret_access_key=no\n[default]\r\n aws_access_key_id = id\n"
            + "aws_secret_access_key=a/b+c=\naws_session_token = t\n[z]\naws_access_key_id=z\n"
        #expect(
            S3CredentialsFile.parse(text) == S3Credentials(accessKeyID: "id", secretKey: "a/b+c=", sessionToken: "t"))
        #expect(S3CredentialsFile.parse("[other]\naws_access_key_id=a\naws_secret_access_key=b") == nil)
        #expect(S3CredentialsFile.parse("") == nil)
        let configuration = S3Configuration(bucket: "bucket")
        let found = try configuration.credentials { $0 == "AWS_SESSION_TOKEN" ? nil : $0 }
        #expect(found == S3Credentials(accessKeyID: "AWS_ACCESS_KEY_ID", secretKey: "AWS_SECRET_ACCESS_KEY"))
        #expect(throws: ApusError(.configurationInvalid)) { try configuration.credentials { _ in nil } }
    }
}
