package import ApusCore

/// A message to a server that a service of the nodes handles.
package struct ServerMessage: Sendable {
    /// The part of the URL after the handler's name and a slash; may be empty.
    package var path: String
    package var data: [UInt8]
    package var account: AccountID
    package var access: AccessID
    /// Nil for an app.
    package var device: DeviceID?
}

/// Handles raw data of apps and devices inside the nodes, and answers it (IV-D12). A handler is a port of services. It
/// takes precedence over a hook of the same name.
package struct ServerHandler: Sendable {
    /// The first part of the URL.
    package let name: String
    let handle: @Sendable (ServerMessage) async throws(ApusError) -> [UInt8]

    /// - Parameter handle: handles a message. Its errors reach the client unchanged.
    package init(_ name: String, _ handle: @escaping @Sendable (ServerMessage) async throws(ApusError) -> [UInt8]) {
        (self.name, self.handle) = (name, handle)
    }
}
