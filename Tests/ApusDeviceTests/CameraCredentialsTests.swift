import ApusDevice
import Testing

@Suite("Names and passwords of cameras (RFC 7616, RFC 7617)")
struct CameraCredentialsTests {
    private static let nonce = "7ypf/xlj9XXwfDPEoM4URrv/xwf94BcCAzFZH4GiTo0v"

    /// The challenge of RFC 7616 §3.9.1.
    private static func challenge(_ algorithm: String?) -> String {
        "Digest realm=\"http-auth@example.org\", qop=\"auth, auth-int\", "
            + (algorithm.map { "algorithm=\($0), " } ?? "")
            + "nonce=\"\(nonce)\", opaque=\"FQhe/qaU925kfnzjCev0ciny7QMkPqMAFRtzCUYo5tdS\""
    }

    private func answer(to fields: [String], uri: String = "/dir/index.html", method: String = "GET") -> String? {
        var credentials = CameraCredentials(
            user: "Mufasa", password: "Circle of Life", clientNonce: "f2/wE4q74E6zIJEtWaHKaf5wv/H5QzzpXusqGemxURZJ")
        guard credentials.take(fields.flatMap(CameraCredentials.challenges)) else { return nil }
        return credentials.authorization(method: method, uri: uri)
    }

    @Test(
        "Digest answers as in the example of RFC 7616 §3.9.1",
        arguments: [
            (nil, "8ca523f5e9506fed4657c9700eebdbec"), ("MD5", "8ca523f5e9506fed4657c9700eebdbec"),
            ("SHA-256", "753927fa0e85d155564e2e272a28d1802ca10daf4496794697cf8db5856cb6c1"),
        ] as [(String?, String)])
    func digest(algorithm: String?, response: String) throws {
        let answered = try #require(answer(to: [Self.challenge(algorithm)]))
        #expect(answered.contains("response=\"\(response)\"") && answered.contains("qop=auth, nc=00000001"))
        #expect(answered.contains("algorithm=SHA-256") == (algorithm == "SHA-256"))
    }

    @Test("Without qop the answer is that of RFC 2069")
    func old() throws {
        // MD5(MD5("Mufasa:cam:Circle of Life"):abc:MD5("DESCRIBE:rtsp://c/x"))
        let answered = try #require(
            answer(to: ["Digest realm=\"cam\", nonce=\"abc\""], uri: "rtsp://c/x", method: "DESCRIBE"))
        #expect(answered.contains("response=\"0012e79798d0af8826dfc605cf8f4b2e\"") && !answered.contains("qop"))
    }

    @Test("Of several challenges the strongest is answered, in any order, in one field or several")
    func strongest() throws {
        let sha = Self.challenge("SHA-256")
        for fields in [
            ["Basic realm=\"x\"", Self.challenge("MD5"), sha], [sha, Self.challenge(nil)],
            ["Basic realm=\"x\", \(sha), \(Self.challenge("MD5"))"],
        ] {
            #expect(try #require(answer(to: fields)).contains("algorithm=SHA-256"))
        }
        #expect(answer(to: ["Basic realm=\"a, b\""]) == "Basic TXVmYXNhOkNpcmNsZSBvZiBMaWZl")
        #expect(answer(to: ["Digest realm=\"x\", nonce=\"y\", algorithm=SHA-512-256", "Bearer"]) == nil)
    }

    @Test("Challenges are read with quotes, escapes and spaces, and whatever else stands there")
    func parsing() {
        let found = CameraCredentials.challenges(
            "Digest realm = \"a \\\"b\\\", c\",nonce=n1 , stale=TRUE,, Basic realm=\"z\"")
        #expect(found.map(\.scheme) == ["Digest", "Basic"])
        #expect(found.first?.parameters == ["realm": "a \"b\", c", "nonce": "n1", "stale": "TRUE"])
        for text in [
            "", "=", "\"\"", "a=b", ",,,=\"", "Digest realm=\"", "Digest =x", String(repeating: "=,", count: 8000),
        ] {
            _ = CameraCredentials.challenges(text)
        }
    }

    @Test("Each request with a nonce has the next count")
    func counts() {
        var credentials = CameraCredentials(user: "a", password: "b", clientNonce: "c")
        let none = credentials.authorization(method: "DESCRIBE", uri: "x")
        let isTaken = credentials.take(CameraCredentials.challenges(Self.challenge("SHA-256")))
        #expect(none == nil && isTaken)
        for count in 1...3 {
            let answer = credentials.authorization(method: "SETUP", uri: "x") ?? ""
            #expect(answer.contains("nc=0000000\(count)"))
        }
    }
}
