public import ApusContract
public import ApusCore
public import Foundation
import SwiftProtobuf

// The thing models of devices (IV-D1 to IV-D10, docs/things.md).

extension ClientSession {
    /// A part of a device's model.
    public struct Property: Sendable, Hashable {
        public var path: String
        /// JSON, such as `{"setVal":0,"t":1609229681}`.
        public var json: String
        /// The version of the leaf, or of the model if the path names no leaf.
        public var version: UInt64
        /// Of a setting: the device has not reported this value yet.
        public var isPending: Bool
        /// When the device gave this value for this request, in Unix milliseconds; nil: it was not asked.
        public var confirmedMs: Int64?
    }

    /// Reads a part of a device's model, also while the device is offline (IV-D3).
    ///
    /// - Parameters:
    ///   - path: such as `ProWritable._logLevel`; empty: the whole model.
    ///   - maxAge: of a state or a setting: the device is asked for it if its value is older; at least 1 ms. Nil: the
    ///     device is not asked.
    /// - Throws: 8002 and 8003 if this account has no such device, 20101 if the path is none, or cannot be asked of the
    ///   device, 21003 if the model has nothing there; if the device is asked, 8000 if it is offline, 20104 if its
    ///   program cannot be asked, and 21002 if it does not answer in time; otherwise as ``ask(_:timeout:)``.
    public func readProperty(
        of device: DeviceID, path: String = "", maxAge: Duration? = nil
    ) async throws(ApusError) -> Property {
        let request = ClientReadPropertyRequest.with {
            ($0.device, $0.path) = (device.rawValue, path)
            $0.maxAgeMs = maxAge.map { max(1, UInt32(clamping: Int64($0.milliseconds))) } ?? 0
        }
        do throws(ApusError) {
            return Property(try await ask(request))
        } catch {
            // The device has not answered.
            guard maxAge != nil, error.code == .deadlineExceeded else { throw error }
            throw ApusError(.answerTimedOut, error.message)
        }
    }

    /// Reads a part of a device's model as a type of Swift, such as a setting's value as an `Int`:
    ///
    ///     let volume = try await session.readProperty(of: device, path: "ProWritable.volume.setVal", as: Int.self)
    ///
    /// - Throws: 21004 if the JSON is not of this type, otherwise as ``readProperty(of:path:maxAge:)``.
    public func readProperty<T: Decodable & Sendable>(
        of device: DeviceID, path: String, maxAge: Duration? = nil, as type: T.Type
    ) async throws(ApusError) -> T {
        let json = try await readProperty(of: device, path: path, maxAge: maxAge).json
        do {
            return try JSONDecoder().decode(type, from: Data(json.utf8))
        } catch {
            let start = UntrustedText.escaped(String(json.prefix(Self.quotedMax)))
            throw ApusError(.modelUnreadable, "\(path) cannot be read as \(type); it is \(start)")
        }
    }

    /// Characters of a value in an error.
    private static var quotedMax: Int { 100 }

    /// Writes a setting or a user property (IV-D4, IV-D8). When this returns, the value is durable. A setting is
    /// pending until the device has it.
    ///
    /// - Parameters:
    ///   - json: the leaf, such as `{"setVal":0}`, or the value if the path ends with `.setVal` or `.val`.
    ///   - version: the version that the leaf must have; nil: any.
    /// - Returns: whether the device has to apply the value yet.
    /// - Throws: as ``readProperty(of:path:maxAge:)``; 20102 if the text is not JSON of the right shape, 10030 if the
    ///   leaf has another version, 10002 if the model becomes too large.
    @discardableResult
    public func writeProperty(
        of device: DeviceID, path: String, json: String, ifVersion version: UInt64? = nil
    ) async throws(ApusError) -> Bool {
        try await ask(
            ClientWritePropertyRequest.with {
                ($0.device, $0.path, $0.json, $0.ifVersion) = (device.rawValue, path, json, version ?? 0)
            }
        ).pending
    }

    /// Adds the user property `ProUser.NAME`, or replaces it (IV-D6).
    ///
    /// - Throws: 8605 if the name begins with `_`, otherwise as ``writeProperty(of:path:json:ifVersion:)``.
    public func addUserProperty(_ name: String, json: String, to device: DeviceID) async throws(ApusError) {
        _ = try await ask(
            ClientAddUserPropertyRequest.with { ($0.device, $0.name, $0.json) = (device.rawValue, name, json) })
    }

    /// Deletes the user property `ProUser.NAME` (IV-D7).
    ///
    /// - Throws: 8605 if the name begins with `_`, 21003 if there is none, otherwise as
    ///   ``writeProperty(of:path:json:ifVersion:)``.
    public func deleteUserProperty(_ name: String, of device: DeviceID) async throws(ApusError) {
        _ = try await ask(
            ClientDeleteUserPropertyRequest.with { ($0.device, $0.name) = (device.rawValue, name) })
    }

    /// The changes of a device's model from now on, for an app and for the device itself (IV-D10). As
    /// ``events(of:as:bufferMax:)``. The newest 32 are kept for a session that was away. If more were missed, the event
    /// says so, and names the version before it: then read the model again.
    public func propertyChanges(
        of device: DeviceID
    ) -> AsyncThrowingStream<TopicEvent<ClientPropertyChanged>, any Error> {
        events(of: "things/\(device.rawValue)")
    }

    // MARK: - Devices

    /// A device reports a state, the value of a setting, or an action that it has.
    ///
    /// - Parameter version: of a setting: the newest version of it that the device has received; nil if it has received
    ///   none. Without it a pending write remains, and the report does not replace it.
    /// - Throws: 20101 if the path is not one that a device reports, 20102, 10002.
    public func reportProperty(
        path: String, json: String, receivedVersion version: UInt64? = nil
    ) async throws(ApusError) {
        _ = try await ask(
            ClientReportPropertyRequest.with { ($0.path, $0.json, $0.receivedVersion) = (path, json, version ?? 0) })
    }

    /// The values of settings that this device has not reported yet, such as `3` at `ProWritable.volume.setVal`. Ask
    /// for them after each connection, and report each at its path with its version.
    public func pendingProperties() async throws(ApusError) -> [Property] {
        try await ask(ClientListPendingPropertiesRequest()).properties.map { Property($0) }
    }

    /// The time since which what this device keeps is that of its account; nil if it never had another one. Erase what
    /// is older, such as recordings and settings: the device was handed over without its data (docs/sharing.md).
    public func dataSince() async throws(ApusError) -> Date? {
        let milliseconds = try await ask(ClientListPendingPropertiesRequest()).dataSinceMs
        return milliseconds == 0 ? nil : Date(timeIntervalSince1970: Double(milliseconds) / 1000)
    }
}

extension ClientSession.Property {
    init(_ message: ClientProperty) {
        self.init(path: message.path, json: message.json, version: message.version, isPending: message.pending)
        confirmedMs = message.confirmedMs > 0 ? message.confirmedMs : nil
    }
}
