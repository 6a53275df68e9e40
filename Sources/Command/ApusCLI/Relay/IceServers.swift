/// Servers for NAT traversal in the form that browsers accept (`RTCConfiguration`, W3C WebRTC §4.2.1).
/// `apus relay credentials` prints it.
struct IceServers: Codable, Sendable, Equatable {
    /// Addresses with a common name and password.
    struct Server: Codable, Sendable, Equatable {
        /// RFC 7065, such as `turn:relay.example:3478?transport=udp`.
        var urls: [String]
        var username: String
        var credential: String
    }

    var iceServers: [Server]

    init(_ servers: [Server]) { iceServers = servers }
}
