/// Credentials of the relay as `apus relay credentials` and `/v1/relay/credentials` give them, read by names of the
/// tests' own: what browsers take must not change with the product's type (W3C WebRTC §4.2.1).
package struct IssuedServers: Decodable {
    package struct Server: Decodable {
        package var urls: [String]
        package var username: String
        package var credential: String
    }

    package var iceServers: [Server]
}
