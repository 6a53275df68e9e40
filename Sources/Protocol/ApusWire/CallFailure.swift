public import ApusCore
public import NIOCore
import SwiftProtobuf

/// The failure of a call. With 10009 it includes the shard's new owner (D5).
public struct CallFailure: Error, Sendable, Equatable {
    public var error: ApusError
    /// With 10009: the shard's epoch in the refusing node's map.
    public var epoch: Epoch?
    /// With 10009: the owner in the refusing node's map.
    public var owner: NodeName?

    public init(_ error: ApusError, epoch: Epoch? = nil, owner: NodeName? = nil) {
        self.error = error
        self.epoch = epoch
        self.owner = owner
    }
}

extension ClusterFailure {
    /// Encodes a failure answer.
    public static func payload(of error: ApusError, epoch: Epoch? = nil, owner: NodeName? = nil) -> ByteBuffer {
        var failure = ClusterFailure()
        failure.code = error.code.number
        failure.message = error.message
        failure.epoch = epoch ?? 0
        failure.owner = owner?.rawValue ?? ""
        // Serializing proto3 without required fields cannot fail. An empty failure decodes as 10018.
        let bytes: [UInt8] = (try? failure.serializedBytes()) ?? []
        return ByteBuffer(bytes: bytes)
    }

    /// Decodes a failure answer. One that cannot be decoded becomes 10018.
    public static func read(_ payload: ByteBuffer) -> CallFailure {
        guard let failure = try? ClusterFailure(bounded: payload), failure.code != 0
        else { return CallFailure(ApusError(.internalFailure, "the failure answer cannot be read")) }
        let error = ApusError(
            ErrorCode(number: failure.code), failure.message.isEmpty ? nil : UntrustedText.escaped(failure.message))
        guard error.code == .moved else { return CallFailure(error) }
        return CallFailure(error, epoch: failure.epoch, owner: NodeName(rawValue: failure.owner))
    }
}
