package import ApusContract
package import ApusCore
import ApusSessions
import ApusWire
import Foundation
package import NIOCore
package import SwiftProtobuf

/// How a request and its answer are written.
package enum ClientEncoding: Sendable, Hashable {
    /// Protobuf's binary form, of the native protocol.
    case binary
    /// Protobuf's JSON form, of WebSocket and REST.
    case json
}

/// A request that was read and waits to be carried out.
package struct ClientWork: Sendable {
    /// Requests of one connection with the same key are carried out one after the other; nil: concurrently with all.
    package let orderKey: String?
    /// What it is about, for the audit log.
    let target: @Sendable () -> String
    let body: @Sendable (ClientCall) async throws(ApusError) -> ByteBuffer

    /// Carries it out and writes the answer.
    package func run(_ call: ClientCall) async throws(ApusError) -> ByteBuffer { try await body(call) }
}

/// A registered request, whatever its message (D17).
package struct ClientOperation: Sendable {
    package let info: ClientRequestInfo
    /// The longest request in bytes, in either encoding.
    package let byteCountMax: Int
    /// The full names of the request's and the reply's message.
    package let inputName: String
    package let outputName: String
    private let reader: @Sendable (ByteBuffer, ClientEncoding) throws(ApusError) -> ClientWork

    /// Reads a request. Throws 10001 where it is not the message, or a number in it is out of bounds, and 10002 where
    /// it is too long.
    package func read(_ bytes: ByteBuffer, _ encoding: ClientEncoding) throws(ApusError) -> ClientWork {
        try reader(bytes, encoding)
    }

    init<M: ClientRequestMessage & BoundedMessage>(
        _ type: M.Type, byteCountMax: Int, orderKey: @escaping @Sendable (M) -> String?,
        _ body: @escaping @Sendable (M, ClientCall) async throws(ApusError) -> M.Reply
    ) {
        let info = M.info
        (self.info, self.byteCountMax) = (info, byteCountMax)
        (inputName, outputName) = (M.protoMessageName, M.Reply.protoMessageName)
        reader = { bytes, encoding throws(ApusError) in
            guard bytes.readableBytes <= byteCountMax else {
                throw ApusError(.frameTooLarge, "a request \(info.name) has at most \(byteCountMax) bytes")
            }
            let message: M = try Self.message(bytes, encoding, of: info.name)
            let target: @Sendable () -> String = { AuditTarget.text(of: message) }
            return ClientWork(orderKey: orderKey(message), target: target) { call throws(ApusError) in
                guard info.roles.contains(call.session.role.roles) else {
                    throw ApusError(
                        .notAllowed, "\(info.name) is not for clients of role \(call.session.role.rawValue)")
                }
                guard info.isForNamedDevices || call.session.allowedDevices == nil else {
                    throw ApusError(.notAllowed, "\(info.name) is not for a token of certain devices only")
                }
                return try Self.bytes(of: try await body(message, call), encoding)
            }
        }
    }

    private static func message<M: BoundedMessage>(
        _ bytes: ByteBuffer, _ encoding: ClientEncoding, of name: String
    ) throws(ApusError) -> M {
        do {
            switch encoding {
            case .binary: return try M(bounded: bytes)
            case .json:
                let message =
                    bytes.readableBytes == 0 ? M() : try M(jsonUTF8Bytes: Array(bytes.readableBytesView))
                guard message.isWithinBounds else { throw ApusError(.malformed) }
                return message
            }
        } catch let error as JSONDecodingError {
            throw ApusError(.malformed, "the request \(name) cannot be read: \(Self.reason(error))")
        } catch {
            throw ApusError(.malformed, "the request \(name) cannot be read")
        }
    }

    /// What a developer needs to mend the request, without what the request says.
    private static func reason(_ error: JSONDecodingError) -> String {
        switch error {
        case .unknownField(let field): "there is no field \(UntrustedText.escaped(String(field.prefix(64))))"
        case .unrecognizedEnumValue: "an enum has a value that is not known"
        case .malformedNumber, .numberRange: "a number is not valid or out of range"
        case .malformedString, .invalidUTF8: "a text is not valid"
        case .malformedBool: "a field is neither true nor false"
        case .truncated: "it ends early"
        case .trailingGarbage: "something follows it"
        default: "it is not JSON of this message"
        }
    }

    private static func bytes(of message: some Message, _ encoding: ClientEncoding) throws(ApusError) -> ByteBuffer {
        do {
            switch encoding {
            case .binary: return ByteBuffer(bytes: try message.serializedBytes() as [UInt8])
            case .json: return ByteBuffer(bytes: try message.jsonUTF8Bytes(options: clientJSON) as [UInt8])
            }
        } catch {
            throw ApusError(.internalFailure, "an answer cannot be encoded")
        }
    }
}

/// Names as in the proto files' JSON mapping, and fields that have their default value too: readers in typed languages
/// need no optionals.
package let clientJSON: JSONEncodingOptions = {
    var options = JSONEncodingOptions()
    options.alwaysPrintEnumsAsInts = false
    options.preserveProtoFieldNames = false
    return options
}()
