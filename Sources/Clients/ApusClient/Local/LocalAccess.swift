import ApusContract
public import ApusCore
import ApusCrypto
public import Foundation
import SwiftProtobuf

/// An app's access to a device in its own network, without the cluster (IV-D14, docs/local-access.md).
///
/// Keep it as you keep a password: whoever has it can change the settings of the device until it expires.
public struct LocalAccess: Sendable, Codable, CustomStringConvertible {
    private let name: String
    private let grant: Grant
    private let key: Data

    public var device: DeviceID { DeviceID(unchecked: name) }
    /// Where the device listens.
    public var addresses: [HostPort] { grant.addresses.prefix(Self.addressesMax).compactMap { HostPort($0) } }
    /// After this time the device refuses it. Ask for another one before, while the cluster can be reached.
    public var expires: Date { Date(timeIntervalSince1970: TimeInterval(grant.expires)) }

    private static let addressesMax = 16

    /// Without the key.
    public var description: String { "local access to \(device), until \(expires.ISO8601Format())" }

    /// Changes a setting of the device, over the network that both are in.
    ///
    /// - Parameters:
    ///   - path: a setting that is not built in, such as `ProWritable.volume`, or its value,
    ///     `ProWritable.volume.setVal`.
    ///   - json: the leaf, such as `{"setVal":3}`, or the value if the path ends with `.setVal`.
    ///   - timeout: for all addresses together.
    /// - Returns: the value that the device has now, in JSON.
    /// - Throws: 21022 if the device cannot be reached, 20005 if it does not answer the handshake, 20006 if it does not
    ///   accept this access, or no longer, 20105 for a built-in setting,
    ///   20101 if the device has no such setting, 20102 if the text is not JSON of the right shape, 8003, 12001, 12002
    ///   and 12004 if the right to control the device is lost, 21002 if the device does not answer in time.
    public func writeProperty(
        path: String, json: String, timeout: Duration = .seconds(5)
    ) async throws(ApusError) -> String {
        let request = ClientLocalWriteRequest.with { ($0.path, $0.json) = (path, json) }
        let hello = ClientLocalHello.with { ($0.version, $0.user, $0.expiresS) = (1, grant.user, grant.userExpires) }
        let deadline = MonotonicTime.now() + timeout
        var last = ApusError(.connectFailed, "the device has no address")
        let addresses = addresses
        for (index, address) in addresses.enumerated() {
            let left = deadline - .now()
            guard left > .zero else { break }
            do throws(ApusError) {
                return try await LocalExchange.run(
                    hello, request, at: address, identity: grant.identity, key: [UInt8](key),
                    handshakeTimeout: left / (addresses.count - index), timeout: left)
            } catch {
                guard Self.nextAddress.contains(error.code) else { throw error }
                // What a device has said tells more than that nobody is at its other addresses.
                if last.code != .deviceTokenRefused { last = error }
            }
        }
        throw last
    }

    /// Another host may be at the address.
    private static let nextAddress: [ErrorCode] = [.connectFailed, .peerHandshakeTimedOut, .deviceTokenRefused]

    /// What the device answers to the request for access, in JSON.
    package struct Grant: Codable, Sendable {
        package var key: Data
        package var identity: String
        package var addresses: [String]
        package var expires: Int64
        package var user: String
        package var userExpires: Int64

        package init(
            key: Data, identity: String, addresses: [String], expires: Int64, user: String, userExpires: Int64
        ) {
            (self.key, self.identity, self.addresses, self.expires) = (key, identity, addresses, expires)
            (self.user, self.userExpires) = (user, userExpires)
        }
    }

    /// The argument of the request, in JSON.
    package struct Request: Codable, Sendable {
        package var key: Data
        package init(key: Data) { self.key = key }
    }

    init(_ grant: Grant, of device: DeviceID, own: Curve25519.KeyAgreement.PrivateKey) throws(ApusError) {
        (name, self.grant) = (device.rawValue, grant)
        key = Data(try LocalKey.key(own, with: grant.key, identity: grant.identity, of: device))
    }
}

extension ClientSession {
    /// Asks a device for access over the network that both are in, through the cluster.
    ///
    /// The access ends when this session's token expires, and after the time that the device allows. The device asks
    /// the cluster before each change whether this client may still control it, as long as it reaches the cluster.
    ///
    /// - Throws: 20104 if the device does not offer this, 8000 if it is offline, 8003 and 12004 if this client may not
    ///   control it, otherwise as ``performAction(_:json:on:timeout:)``.
    public func localAccess(to device: DeviceID) async throws(ApusError) -> LocalAccess {
        let own = Curve25519.KeyAgreement.PrivateKey()
        guard let argument = try? JSONEncoder().encode(LocalAccess.Request(key: own.publicKey.rawRepresentation)) else {
            throw ApusError(.internalFailure)
        }
        let answer = try await performAction(
            "Action.\(ClientCheckLocalAccessRequest.action).ctlVal", json: String(decoding: argument, as: UTF8.self),
            on: device)
        guard let grant = try? JSONDecoder().decode(LocalAccess.Grant.self, from: Data(answer.utf8)) else {
            throw ApusError(.malformed, "the device's answer cannot be read")
        }
        return try LocalAccess(grant, of: device, own: own)
    }
}
