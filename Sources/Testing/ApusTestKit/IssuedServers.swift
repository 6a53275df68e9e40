/// Credentials of the relay as returned by `apus relay credentials` and `/v1/relay/credentials`. The tests decode them
/// with their own type, so that a change of the product's type cannot change what browsers receive (W3C WebRTC §4.2.1).
package struct IssuedServers: Decodable {
    package struct Server: Decodable {
        package var urls: [String]
        package var username: String
        package var credential: String
    }

    package var iceServers: [Server]
}
