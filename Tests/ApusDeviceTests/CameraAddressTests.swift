import ApusDevice
import Testing

@Suite("Addresses of cameras")
struct CameraAddressTests {
    private static let addresses: [(text: String, user: String?, password: String?, url: String)] = [
        ("rtsp://cam/live", nil, nil, "rtsp://cam:554/live"),
        ("RTSPS://cam", nil, nil, "rtsps://cam:322"),
        ("rtsp://admin@192.0.2.7:8554/a?b=1#c", "admin", nil, "rtsp://192.0.2.7:8554/a?b=1"),
        ("rtsp://admin:secret@cam/x", "admin", "secret", "rtsp://cam:554/x"),
        ("rtsp://admin:p@ss@cam:1/x", "admin", "p@ss", "rtsp://cam:1/x"),
        ("rtsp://admin:Pw/SECRET1@127.0.0.1:18600/x", "admin", "Pw/SECRET1", "rtsp://127.0.0.1:18600/x"),
        ("rtsp://admin:Pw#SECRET1@cam/x", "admin", "Pw#SECRET1", "rtsp://cam:554/x"),
        ("rtsp://admin:Pw?SECRET1@cam/x", "admin", "Pw?SECRET1", "rtsp://cam:554/x"),
        ("rtsp://admin:Pw%SECRET1@cam/x", "admin", "Pw%SECRET1", "rtsp://cam:554/x"),
        ("rtsp://admin:Pw%2FSECRET1@cam/x", "admin", "Pw/SECRET1", "rtsp://cam:554/x"),
        ("rtsp://me@home.example:p/w@cam/x", "me@home.example", "p/w", "rtsp://cam:554/x"),
        ("rtsp://a:b:c@[2001:db8::1]:5/x", "a", "b:c", "rtsp://[2001:db8::1]:5/x"),
        ("rtsp://[fe80::1%25eth0]/x", nil, nil, "rtsp://[fe80::1%25eth0]:554/x"),
        ("rtsp://cam:554/path/a@b", nil, nil, "rtsp://cam:554/path/a@b"),
        (
            "rtsp://cam/user=admin&password=SECRET1&channel=1", nil, nil,
            "rtsp://cam:554/user=admin&password=SECRET1&channel=1"
        ),
    ]

    @Test("User, password, host and path are found, whatever the password has", arguments: addresses.indices)
    func parts(_ index: Int) throws {
        let expected = Self.addresses[index]
        let address = try #require(CameraAddress(expected.text))
        #expect(address.user == expected.user && address.password == expected.password)
        #expect(address.url == expected.url)
        #expect(!address.shown.contains("SECRET1") && !address.shown.contains("x"), "only host and port are shown")
    }

    @Test(
        "What is no address is refused",
        arguments: [
            "", "rtsp://", "http://cam/", "cam", "rtsp:///x", "rtsp://cam:0/", "rtsp://cam:65536/", "rtsp://cam:x/",
            "rtsp://a b/", "rtsp://cam/\r\nX: y", "rtsp://[::1/", "rtsp://me@/",
            "rtsp://" + String(repeating: "a", count: 5000),
        ])
    func refused(text: String) { #expect(CameraAddress(text) == nil) }

    @Test("A redirection keeps the password only at the camera's own host, and never without TLS")
    func redirected() throws {
        let address = try #require(CameraAddress("rtsps://me:secret@cam/x"))
        #expect(address.redirected(to: "rtsps://CAM:99/y")?.password == "secret")
        for other in ["rtsps://other/x", "rtsp://cam/x", "nothing"] { #expect(address.redirected(to: other) == nil) }
    }
}
