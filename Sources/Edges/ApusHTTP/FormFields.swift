import ApusCore
import HTTPTypes
import Hummingbird
import NIOCore

/// The fields of a form (`application/x-www-form-urlencoded`), each at most once (RFC 6749 §3.1, §3.2).
///
/// Pure, but for the reading of the body.
struct FormFields: Sendable {
    private static let countMax = 16

    private var fields: [(name: String, value: String)] = []

    /// Reads the body of a request.
    ///
    /// - Throws: 10001 if it is no form, or has a field twice; 10002 if it is too long.
    init(_ request: Request) async throws(ApusError) {
        let type = request.headers[.contentType]?.split(separator: ";").first.map { $0.lowercased() } ?? ""
        guard type == "application/x-www-form-urlencoded" else {
            throw ApusError(.malformed, "the body's Content-Type must be application/x-www-form-urlencoded")
        }
        let body: ByteBuffer
        do {
            body = try await request.body.collect(upTo: DeviceAuthorizationRoutes.bodyByteCountMax)
        } catch {
            throw ApusError(.frameTooLarge)
        }
        try self.init(Array(body.readableBytesView))
    }

    /// - Throws: 10001 if it is no form, or has a field twice.
    init(_ bytes: [UInt8]) throws(ApusError) {
        let pairs = bytes.split(separator: UInt8(ascii: "&"))
        guard pairs.count <= Self.countMax else { throw ApusError(.malformed, "the form has too many fields") }
        for pair in pairs {
            let parts = pair.split(separator: UInt8(ascii: "="), maxSplits: 1, omittingEmptySubsequences: false)
            guard let name = Self.text(parts[0]), let value = parts.count == 2 ? Self.text(parts[1]) : "" else {
                throw ApusError(.malformed, "the form cannot be read")
            }
            guard !fields.contains(where: { $0.name.isExactly(name) }) else {
                throw ApusError(.malformed, "the form has a field twice")
            }
            fields.append((name, value))
        }
    }

    /// Nil if the field is missing or empty.
    subscript(name: String) -> String? {
        fields.first { $0.name.isExactly(name) && !$0.value.isEmpty }?.value
    }

    /// Nil if it is not UTF-8, or an escape is not complete.
    private static func text(_ bytes: ArraySlice<UInt8>) -> String? {
        var plain: [UInt8] = []
        var rest = bytes
        while let byte = rest.popFirst() {
            switch byte {
            case UInt8(ascii: "+"): plain.append(UInt8(ascii: " "))
            case UInt8(ascii: "%"):
                guard rest.count >= 2, let value = Hexadecimal.bytes(String(decoding: rest.prefix(2), as: UTF8.self))
                else { return nil }
                plain += value
                rest = rest.dropFirst(2)
            default: plain.append(byte)
            }
        }
        return String(validating: plain, as: UTF8.self)
    }
}
