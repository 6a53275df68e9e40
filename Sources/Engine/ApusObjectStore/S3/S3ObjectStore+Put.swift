package import ApusCore
import ApusCrypto
import ApusHTTPClient
import Foundation
import Synchronization

extension S3ObjectStore {
    /// What a put compares the server's object with.
    struct Sent: Sendable {
        /// The random number of the put.
        var put: String
        /// SHA-256 of the content, in hexadecimal digits.
        var digest: String
        /// The entity tag of an object that has this content, if the server makes tags of MD5.
        var tag: String
    }

    /// How often a put begins again because an object that the server acknowledged, or refused to replace, is not
    /// there.
    private static let roundsMax = 3

    package func put(_ name: ObjectName, _ content: ObjectContent) async throws(ApusError) -> ObjectPut {
        try checkSize(content)
        let outcome = try await runner.run(.put) { _ throws(ApusError) in
            let hasParts =
                content.byteCount > self.limits.singleByteCountMax
                && self.isMultipartConditional.load(ordering: .relaxed)
            return try await hasParts ? self.putParts(name, content) : self.putWhole(name, content)
        }
        if case .stored = outcome { runner.metrics.put(byteCount: content.byteCount) }
        return outcome
    }

    private static func newNumber() -> String {
        Hexadecimal.text((0..<16).map { _ in UInt8.random(in: .min ... .max) })
    }

    private func putWhole(_ name: ObjectName, _ content: ObjectContent) async throws(ApusError) -> ObjectPut {
        let bytes = try await content.read(0..<content.byteCount)
        let sent = Sent(
            put: Self.newNumber(), digest: Hexadecimal.text(SHA256.hash(data: bytes)),
            tag: Hexadecimal.text(Insecure.MD5.hash(data: bytes)))
        var request = S3Request("PUT", key(name))
        request.body = bytes
        request.headers = Self.metadata(sent) + [("if-none-match", "*")]
        for _ in 0..<Self.roundsMax {
            let status = try await client.send(request) { answer throws(ApusError) in answer.head.status }
            if let outcome = try await outcome(name, content, sent, isAcknowledged: status == 200) { return outcome }
        }
        throw ApusError(.storageFailed, "\(place) acknowledges \(name), but does not have it")
    }

    private static func metadata(_ sent: Sent) -> [(name: String, value: String)] {
        [(Metadata.put, sent.put), (Metadata.digest, sent.digest)]
    }

    /// Finds out what a put has achieved.
    ///
    /// - Parameter isAcknowledged: the server said that it has stored the object.
    /// - Returns: nil if there is no object of the name.
    private func outcome(
        _ name: ObjectName, _ content: ObjectContent, _ sent: Sent, isAcknowledged: Bool
    ) async throws(ApusError) -> ObjectPut? {
        guard let facts = try await facts(name) else { return nil }
        // A server that drops metadata is believed if the content is the same.
        let isOwn = facts.put.map { $0.isExactly(sent.put) } ?? isAcknowledged
        guard isOwn else {
            guard facts.head.byteCount == content.byteCount else { return .exists(facts.head, isSame: false) }
            let isSame =
                if let digest = facts.digest { digest.isExactly(sent.digest) } else {
                    try await compare(content, with: name)
                }
            return isSame.map { .exists(facts.head, isSame: $0) }
        }
        guard facts.head.byteCount == content.byteCount else {
            throw ApusError(
                .storageFailed,
                "\(place) has \(facts.head.byteCount) bytes of \(name), which has \(content.byteCount)")
        }
        if facts.head.tag.lowercased().isExactly(sent.tag) { return .stored(facts.head) }
        guard let isSame = try await compare(content, with: name) else { return nil }
        guard isSame else { throw ApusError(.storageFailed, "\(place) has other bytes of \(name) than were sent") }
        return .stored(facts.head)
    }

    private func compare(_ content: ObjectContent, with name: ObjectName) async throws(ApusError) -> Bool? {
        try await isSame(content) { range throws(ApusError) in try await self.read(name, range) }
    }

    // MARK: Multipart uploads

    /// Puts an object in parts.
    ///
    /// - Parameter looksFirst: nothing is sent if the name exists.
    func putParts(
        _ name: ObjectName, _ content: ObjectContent, looksFirst: Bool = true
    ) async throws(ApusError) -> ObjectPut {
        let (key, ranges) = (key(name), content.ranges(of: limits.partByteCount))
        let (digest, tag) = (try await digest(content), try await tag(content, ranges))
        let sent = Sent(put: Self.newNumber(), digest: digest, tag: tag)
        if looksFirst, let outcome = try await outcome(name, content, sent, isAcknowledged: false) { return outcome }
        let upload = try await begin(key, sent)
        do throws(ApusError) {
            for (index, range) in ranges.enumerated() {
                try await send(try await content.read(range), of: key, upload, number: index + 1)
            }
            let tags = try await self.tags(key, upload, sizes: ranges.map(\.count))
            let isComplete = try await complete(key, upload, tags)
            if !isComplete { try await abort(key, upload) }
            if let outcome = try await outcome(name, content, sent, isAcknowledged: isComplete) { return outcome }
        } catch {
            // Where the task was cancelled, the upload is a leftover.
            if error.code != .cancelled { try? await abort(key, upload) }
            throw error
        }
        throw ApusError(.storageFailed, "\(place) acknowledges \(name), but does not have it")
    }

    private func digest(_ content: ObjectContent) async throws(ApusError) -> String {
        var hash = SHA256()
        for range in content.ranges(of: limits.partByteCount) { hash.update(data: try await content.read(range)) }
        return Hexadecimal.text(hash.finalize())
    }

    /// The entity tag of S3 for an object in parts: the MD5 of the parts' MD5, and their number.
    private func tag(_ content: ObjectContent, _ ranges: [Range<Int>]) async throws(ApusError) -> String {
        var digests: [UInt8] = []
        for range in ranges { digests += Insecure.MD5.hash(data: try await content.read(range)) }
        return Hexadecimal.text(Insecure.MD5.hash(data: digests)) + "-\(ranges.count)"
    }

    private func begin(_ key: String, _ sent: Sent) async throws(ApusError) -> String {
        var request = S3Request("POST", key)
        request.query = [("uploads", "")]
        request.headers = Self.metadata(sent)
        return try await client.send(request) { answer throws(ApusError) in
            guard answer.head.status == 200, let id = try S3Element(reading: answer.body).text("UploadId"), !id.isEmpty
            else { throw ApusError(.malformed, "the answer has no id of an upload") }
            return id
        }
    }

    private func send(_ bytes: [UInt8], of key: String, _ upload: String, number: Int) async throws(ApusError) {
        var request = S3Request("PUT", key)
        request.query = [("partNumber", String(number)), ("uploadId", upload)]
        request.body = bytes
        let status = try await client.send(request) { answer throws(ApusError) in answer.head.status }
        guard status == 200 else {
            throw ApusError(.storageFailed, "\(place) does not take part \(number) of an object (\(status))")
        }
    }

    /// The tags of all parts, as the server has them.
    ///
    /// - Throws: 10021 if a part is missing or has another size.
    private func tags(_ key: String, _ upload: String, sizes: [Int]) async throws(ApusError) -> [String] {
        let parts = try await parts(key, upload)
        var tags: [String] = []
        for (index, size) in sizes.enumerated() {
            guard let part = parts.first(where: { $0.number == index + 1 }), part.byteCount == size else {
                throw ApusError(.storageFailed, "\(place) acknowledged part \(index + 1), but does not have it")
            }
            tags.append(part.tag)
        }
        return tags
    }

    private struct UploadedPart: Sendable {
        var number: Int
        var byteCount: Int
        var tag: String
    }

    /// The parts of an upload, at most 1,000; none if there is no such upload.
    private func parts(_ key: String, _ upload: String) async throws(ApusError) -> [UploadedPart] {
        var request = S3Request("GET", key)
        request.query = [("uploadId", upload)]
        request.answerByteCountMax = 1 << 20
        return try await client.send(request) { answer throws(ApusError) in
            guard answer.head.status != 404 else { return [] }
            let document = try S3Element(reading: answer.body)
            guard answer.head.status == 200, document.text("UploadId")?.isExactly(upload) == true else {
                throw ApusError(.malformed, "the answer is no list of parts")
            }
            return document.all("Part").compactMap { part in
                guard let number = part.text("PartNumber").flatMap({ Int($0) }), let tag = part.text("ETag"),
                    let byteCount = part.text("Size").flatMap({ Int($0) })
                else { return nil }
                return UploadedPart(number: number, byteCount: byteCount, tag: tag.filter { $0 != "\"" })
            }
        }
    }

    /// - Returns: false if the name exists, or the upload has ended before.
    private func complete(_ key: String, _ upload: String, _ tags: [String]) async throws(ApusError) -> Bool {
        var request = S3Request("POST", key)
        request.query = [("uploadId", upload)]
        request.headers = [("if-none-match", "*"), ("content-type", "application/xml")]
        let parts = tags.enumerated().map { index, tag in
            "<Part><PartNumber>\(index + 1)</PartNumber><ETag>\"\(tag)\"</ETag></Part>"
        }
        request.body = Array("<CompleteMultipartUpload>\(parts.joined())</CompleteMultipartUpload>".utf8)
        return try await client.send(request) { answer throws(ApusError) in answer.head.status == 200 }
    }

    private func abort(_ key: String, _ upload: String) async throws(ApusError) {
        var request = S3Request("DELETE", key)
        request.query = [("uploadId", upload)]
        try await client.send(request) { _ throws(ApusError) in }
    }

    // MARK: Leftovers

    package func leftovers(olderThan age: Duration) async throws(ApusError) -> ObjectLeftovers {
        try await sweep(olderThan: age, removes: false)
    }

    package func removeLeftovers(olderThan age: Duration) async throws(ApusError) -> ObjectLeftovers {
        try await sweep(olderThan: age, removes: true)
    }

    private func sweep(olderThan age: Duration, removes: Bool) async throws(ApusError) -> ObjectLeftovers {
        try checkAge(age)
        let found = try await runner.run(.leftovers) { _ throws(ApusError) in
            let limit = WallClock.milliseconds() - age.nanoseconds / 1_000_000
            var found = ObjectLeftovers()
            for upload in try await self.uploads() where upload.begunMilliseconds < limit {
                guard found.count < self.limits.leftoverCountMax else { break }
                found.count += 1
                found.byteCount += try await self.parts(upload.key, upload.id).reduce(0) { $0 + $1.byteCount }
                if removes { try await self.abort(upload.key, upload.id) }
            }
            return found
        }
        runner.metrics.left(removes ? 0 : found.count)
        return found
    }

    private struct Upload: Sendable {
        var key: String
        var id: String
        var begunMilliseconds: Int64
    }

    /// Uploads in progress whose keys are of this store, at most 1,000.
    private func uploads() async throws(ApusError) -> [Upload] {
        var request = S3Request("GET", nil)
        request.query = [("uploads", ""), ("prefix", keyPrefix)]
        request.answerByteCountMax = 4 << 20
        let keyPrefix = keyPrefix
        return try await client.send(request) { answer throws(ApusError) in
            let document = try S3Element(reading: answer.body)
            guard answer.head.status == 200, document.name.isExactly("ListMultipartUploadsResult") else {
                throw ApusError(.malformed, "the answer is no list of uploads")
            }
            return document.all("Upload").compactMap { upload in
                guard let key = upload.text("Key"), key.begins(with: keyPrefix), let id = upload.text("UploadId"),
                    let begun = upload.text("Initiated").flatMap(S3Time.milliseconds(list:))
                else { return nil }
                return Upload(key: key, id: id, begunMilliseconds: begun)
            }
        }
    }
}
