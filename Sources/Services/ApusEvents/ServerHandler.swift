package import ApusCore

/// A message for a server that a service of the nodes takes itself.
package struct ServerMessage: Sendable {
    /// What follows the name of the handler and a slash; may be empty.
    package var path: String
    package var data: [UInt8]
    package var account: AccountID
    package var access: AccessID
    /// Nil for an app.
    package var device: DeviceID?
}

/// What takes raw data of apps and devices in the nodes, and answers (IV-D12): a port of services. It takes the data of
/// its name before a hook of the same name does.
package struct ServerHandler: Sendable {
    /// The name in the URL.
    package let name: String
    let handle: @Sendable (ServerMessage) async throws(ApusError) -> [UInt8]

    /// - Parameter handle: an error with another number than 21005 reaches the client as it is.
    package init(_ name: String, _ handle: @escaping @Sendable (ServerMessage) async throws(ApusError) -> [UInt8]) {
        (self.name, self.handle) = (name, handle)
    }
}
