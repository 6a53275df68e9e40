package import ApusCore
import ApusHTTPClient
import Synchronization

/// Objects in a bucket of an S3 server: AWS, or another one that has conditional writes.
///
/// **A put** is one request with `If-None-Match: *`, so that the server refuses it with 412 if the name exists. Each
/// put has a random number among the object's metadata. After a request whose answer was lost, and after a 412, the
/// number says whether the object is this put's own.
///
/// **Nothing is acknowledged on the server's word alone.** After a put the object is looked up, and its size, number
/// and entity tag are compared with what was sent. Where the tag is not the MD5 of the content, as with keys of the
/// server, the object is read back and compared.
///
/// **Large objects** are multipart uploads, whose completion has the same condition, if ``check()`` found that the
/// server keeps it. An upload that fails is aborted; one whose process is killed is a leftover.
///
/// Failures that may pass are repeated a few times with growing waits (``S3Verdict``), within the time of an operation.
///
/// Concurrency model: any task.
package final class S3ObjectStore: ObjectStore {
    package let limits: ObjectStoreLimits
    package var place: String { client.place }
    let client: S3Client
    let runner: OperationRunner
    /// What the keys of all objects begin with.
    let keyPrefix: String
    /// The server refuses the completion of an upload whose name exists.
    let isMultipartConditional = Atomic<Bool>(false)

    /// - Throws: 10022 if the endpoint or the keys are not valid, 10018 if the system cannot create a thread.
    package init(
        _ configuration: S3Configuration, limits: ObjectStoreLimits = ObjectStoreLimits()
    ) async throws(ApusError) {
        self.limits = limits
        runner = OperationRunner(limits)
        keyPrefix = configuration.prefix.isEmpty ? "" : configuration.prefix + "/"
        client = try await S3Client(configuration, limits: limits, metrics: runner.metrics)
    }

    package func shutdown() async { await client.shutdown() }

    func key(_ name: ObjectName) -> String { keyPrefix + name.text }

    // MARK: Reading

    package func head(_ name: ObjectName) async throws(ApusError) -> ObjectHead? {
        try await runner.run(.head) { _ throws(ApusError) in try await self.facts(name)?.head }
    }

    package func get(_ name: ObjectName, range: Range<Int>?) async throws(ApusError) -> ObjectPart? {
        let range = try limited(range)
        let part = try await runner.run(.get) { _ throws(ApusError) in try await self.read(name, range) }
        runner.metrics.read(byteCount: part?.bytes.count ?? 0)
        return part
    }

    /// An object as the server describes it.
    struct Facts: Sendable, Equatable {
        var head: ObjectHead
        /// The number of its put; nil if it has none.
        var put: String?
        /// SHA-256 of its content, in hexadecimal digits, as its put said.
        var digest: String?
    }

    /// Metadata of objects. Their names are in lower case.
    enum Metadata {
        static let put = "x-amz-meta-apus-put"
        static let digest = "x-amz-meta-apus-sha256"
    }

    /// Nil if there is no such object.
    func facts(_ name: ObjectName) async throws(ApusError) -> Facts? {
        try await client.send(S3Request("HEAD", key(name))) { answer throws(ApusError) -> Facts? in
            guard answer.head.status != 404 else { return nil }
            guard answer.head.status == 200, let count = answer.head.headers["content-length"].flatMap({ Int($0) })
            else { throw ApusError(.malformed, "the answer has no size") }
            return Self.facts(answer.head, byteCount: count)
        }
    }

    private static func facts(_ head: HTTPHead, byteCount: Int) -> Facts {
        let tag = (head.headers["etag"] ?? "").filter { $0 != "\"" }
        let time = head.headers["last-modified"].flatMap(S3Time.milliseconds(header:)) ?? 0
        return Facts(
            head: ObjectHead(byteCount: byteCount, tag: tag, modifiedMilliseconds: time),
            put: head.headers[Metadata.put], digest: head.headers[Metadata.digest])
    }

    /// Reads a range that is not longer than a read may be.
    func read(_ name: ObjectName, _ range: Range<Int>) async throws(ApusError) -> ObjectPart? {
        guard !range.isEmpty else { return try await emptyPart(of: name, at: range.lowerBound) }
        var request = S3Request("GET", key(name))
        request.headers = [("range", "bytes=\(range.lowerBound)-\(range.upperBound - 1)")]
        request.answerByteCountMax = range.count + (64 << 10)
        // Some servers refuse a range that ends behind the object's end.
        request.statusAlso = 400
        let part = try await client.send(request) { answer throws(ApusError) in try Self.part(answer, range) }
        switch part {
        case .part(let part): return part
        case .missing: return nil
        case .behind:
            guard let byteCount = try await facts(name)?.head.byteCount else { return nil }
            let clamped = range.clamped(to: 0..<byteCount)
            guard clamped.isEmpty || clamped == range else { return try await read(name, clamped) }
            guard clamped.isEmpty else {
                throw ApusError(.storageFailed, "\(place) does not give bytes \(range) of \(name)")
            }
            return try await emptyPart(of: name, at: range.lowerBound)
        }
    }

    private func emptyPart(of name: ObjectName, at offset: Int) async throws(ApusError) -> ObjectPart? {
        try await facts(name).map { facts in
            ObjectPart(bytes: [], offset: min(offset, facts.head.byteCount), head: facts.head)
        }
    }

    private enum ReadPart { case part(ObjectPart), missing, behind }

    /// What an answer to a request of a range has.
    ///
    /// - Throws: 10001 if its bytes are not those that it announces, or that were requested.
    private static func part(_ answer: HTTPClient.Answer, _ range: Range<Int>) throws(ApusError) -> ReadPart {
        switch answer.head.status {
        case 404: return .missing
        case 400, 416: return .behind
        case 206:
            let match = answer.head.headers["content-range"]?.wholeMatch(of: #/bytes (\d+)-(\d+)\/(\d+)/#)
            guard let match, let first = Int(match.1), let last = Int(match.2), let byteCount = Int(match.3),
                first == range.lowerBound, last == min(range.upperBound, byteCount) - 1,
                answer.body.count == last - first + 1
            else { throw ApusError(.malformed, "the answer has another range than was requested") }
            return .part(
                ObjectPart(
                    bytes: answer.body, offset: first, head: facts(answer.head, byteCount: byteCount).head))
        case 200:
            // The server knows no ranges, and sent the whole object.
            let length = answer.head.headers["content-length"].flatMap { Int($0) } ?? answer.body.count
            guard length == answer.body.count else {
                throw ApusError(.malformed, "the answer is shorter than it says")
            }
            let clamped = range.clamped(to: 0..<answer.body.count)
            guard !clamped.isEmpty else { return .behind }
            return .part(
                ObjectPart(
                    bytes: Array(answer.body[clamped]), offset: clamped.lowerBound,
                    head: facts(answer.head, byteCount: answer.body.count).head))
        default: throw ApusError(.malformed, "the answer has the status \(answer.head.status)")
        }
    }

    // MARK: Listing and deletion

    package func list(prefix: String, after: ObjectName?, countMax: Int?) async throws(ApusError) -> ObjectPage {
        let countMax = max(1, min(countMax ?? limits.pageCountMax, limits.pageCountMax))
        return try await runner.run(.list) { _ throws(ApusError) in
            var start = after.map { self.key($0) }
            // Keys that are no names of objects are skipped. A page that has only those is not the last one.
            while true {
                let page = try await self.page(prefix: prefix, after: start, countMax: countMax)
                guard page.entries.isEmpty, let last = page.last, page.isCut else {
                    return ObjectPage(entries: page.entries, next: page.isCut ? page.entries.last?.name : nil)
                }
                start = last
            }
        }
    }

    private struct KeyPage: Sendable {
        var entries: [ObjectEntry] = []
        /// The last key, also if it is no name.
        var last: String?
        var isCut = false
    }

    private func page(prefix: String, after: String?, countMax: Int) async throws(ApusError) -> KeyPage {
        var request = S3Request("GET", nil)
        request.query = [
            ("list-type", "2"), ("max-keys", String(countMax)), ("prefix", keyPrefix + prefix),
        ]
        if let after { request.query.append(("start-after", after)) }
        request.answerByteCountMax = 4 << 20
        let keyPrefix = keyPrefix
        return try await client.send(request) { answer throws(ApusError) in
            let document = try S3Element(reading: answer.body)
            guard answer.head.status == 200, document.name.isExactly("ListBucketResult"),
                let isCut = document.text("IsTruncated")
            else { throw ApusError(.malformed, "the answer is no list") }
            var page = KeyPage(isCut: isCut.isExactly("true"))
            for item in document.all("Contents") {
                guard let key = item.text("Key") else { throw ApusError(.malformed, "an entry has no key") }
                guard page.last.map({ $0.precedes(key) }) ?? true, after.map({ $0.precedes(key) }) ?? true else {
                    throw ApusError(.malformed, "the keys are not in order")
                }
                page.last = key
                guard key.begins(with: keyPrefix),
                    let name = ObjectName(checking: String(key.dropFirst(keyPrefix.count))),
                    let byteCount = item.text("Size").flatMap({ Int($0) })
                else { continue }
                let time = item.text("LastModified").flatMap(S3Time.milliseconds(list:)) ?? 0
                page.entries.append(ObjectEntry(name: name, byteCount: byteCount, modifiedMilliseconds: time))
            }
            return page
        }
    }

    package func delete(_ name: ObjectName) async throws(ApusError) {
        try await runner.run(.delete) { _ throws(ApusError) in
            try await self.client.send(S3Request("DELETE", self.key(name))) { _ throws(ApusError) in }
        }
    }

    // MARK: Check

    package func check() async throws(ApusError) {
        let digits = Hexadecimal.text((0..<8).map { _ in UInt8.random(in: .min ... .max) })
        try await checkPromises(try ObjectName("apus-check/\(digits)"))
        let name = try ObjectName("apus-check/\(digits)-parts")
        let isKept = try await runner.run(.put) { _ throws(ApusError) in
            let (first, second) = (ObjectContent(Array("first".utf8)), ObjectContent(Array("other".utf8)))
            do throws(ApusError) {
                guard case .stored = try await self.putParts(name, first) else { return false }
                _ = try await self.putParts(name, second, looksFirst: false)
            } catch {
                // A server without multipart uploads, or without the condition, takes objects in one request.
                guard error.code == .storageFailed else { throw error }
            }
            return try await self.read(name, 0..<16)?.bytes == Array("first".utf8)
        }
        try await delete(name)
        isMultipartConditional.store(isKept, ordering: .relaxed)
    }
}
