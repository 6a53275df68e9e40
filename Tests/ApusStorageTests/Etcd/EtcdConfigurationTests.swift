import ApusStorage
import Testing

@Suite("Configuration of the ownership store in etcd")
struct EtcdConfigurationTests {
    @Test(
        "An endpoint is a URL with a port",
        arguments: [
            ("https://etcd.example:2379", "https://etcd.example:2379"), ("http://127.0.0.1:1/", "http://127.0.0.1:1"),
            ("https://[2001:db8::1]:2379", "https://[2001:db8::1]:2379"),
        ])
    func endpoint(text: String, shown: String) throws {
        let endpoint = try #require(EtcdEndpoint(text))
        #expect(endpoint.description == shown)
        #expect(EtcdEndpoint(endpoint.description) == endpoint)
        #expect(endpoint.isSecure == text.hasPrefix("https"))
    }

    @Test(
        "Other texts are no endpoints",
        arguments: [
            "", "etcd.example:2379", "https://etcd.example", "https://etcd.example:0", "https://:2379",
            "https://user@etcd.example:2379", "https://etcd.example:2379/v3", "ftp://etcd.example:2379",
            "https://2001:db8::1:2379",
        ])
    func notAnEndpoint(text: String) {
        #expect(EtcdEndpoint(text) == nil)
    }

    @Test("A store's identity is parsed as it is written")
    func identity() {
        let identity = StoreID(high: 1, low: .max)
        #expect(identity.description == "0000000000000001ffffffffffffffff")
        #expect(StoreID(identity.description) == identity)
        for text in ["", "1", identity.description + "0", "+000000000000001ffffffffffffffff"] {
            #expect(StoreID(text) == nil)
        }
    }
}
