import ApusCore
import ApusNodeConfiguration
import ApusStorage
import Testing

@Suite("The keys of the ownership store in etcd")
struct EtcdOwnershipKeysTests {
    private func read(_ ownership: String) throws -> NodeConfiguration {
        let yaml = """
            cluster: home
            node: n1
            data_directory: n1
            ownership: {\(ownership)}
            records: {url: 'postgresql://db.example/apus'}
            tls: {authority: pki/ca.pem, certificate: pki/n1.pem, key: pki/n1.key,
                  client_certificate: pki/clients.pem, client_key: pki/clients.key}
            keys: {cluster: pki/cluster.key, token_public: pki/token.pub}
            advertise: {transport: '127.0.0.1:7400', clients: '127.0.0.1:7443'}
            """
        return try NodeConfiguration(yaml: yaml, source: "test", folder: "/etc/apus", environment: [:])
    }

    @Test("A store in etcd needs no directory, and its files are relative to the configuration")
    func etcd() throws {
        let configuration = try read(
            """
            store: etcd, etcd: {endpoints: 'https://a.example:2379 https://b.example:2379', timeout: 500ms, \
            authority: etcd/ca.pem, certificate: etcd/n1.pem, key: /run/n1.key, user: apus, \
            password_file: etcd/password}
            """)
        let etcd = try #require(configuration.etcd)
        #expect(etcd.endpoints.map(\.description) == ["https://a.example:2379", "https://b.example:2379"])
        #expect(etcd.timeout == .milliseconds(500) && etcd.pollInterval == .seconds(5) && etcd.prefix == "apus/")
        #expect(etcd.authorityFile == "/etc/apus/etcd/ca.pem" && etcd.certificateFile == "/etc/apus/etcd/n1.pem")
        #expect(etcd.keyFile == "/run/n1.key" && etcd.user == "apus" && etcd.passwordFile == "/etc/apus/etcd/password")
        #expect(configuration.ownershipDirectory.isEmpty)
    }

    @Test("Without `store: etcd` the keys of etcd have no effect")
    func local() throws {
        let configuration = try read("directory: shared, etcd: {endpoints: 'http://127.0.0.1:2379'}")
        #expect(configuration.etcd == nil && configuration.ownershipDirectory == "/etc/apus/shared")
    }

    @Test(
        "A configuration that cannot work is refused with 10022 and its key",
        arguments: [
            ("", "ownership.directory"), ("store: etcd", "ownership.etcd.endpoints"),
            ("store: consul", "ownership.store"),
            ("store: etcd, etcd: {endpoints: 'a.example:2379'}", "ownership.etcd.endpoints"),
            ("store: etcd, etcd: {endpoints: 'https://a:1 http://b:1'}", "ownership.etcd.endpoints"),
            ("store: etcd, etcd: {endpoints: 'https://a:1', certificate: c.pem}", "ownership.etcd.key"),
            ("store: etcd, etcd: {endpoints: 'https://a:1', user: apus}", "ownership.etcd.user"),
            ("store: etcd, etcd: {endpoints: 'https://a:1', timeout: 5ms}", "ownership.etcd.timeout"),
            ("store: etcd, etcd: {endpoints: 'https://a:1', poll: 2m}", "ownership.etcd.poll"),
            ("store: etcd, etcd: {endpoints: 'https://a:1', retry_min: 9s}", "ownership.etcd.retry_min"),
            ("store: etcd, etcd: {endpoints: 'https://a:1', endpoint: b}", "ownership.etcd.endpoint"),
        ])
    func refused(ownership: String, key: String) {
        let failure = #expect(throws: ApusError.self) { _ = try read(ownership) }
        #expect(failure?.code == .configurationInvalid && failure?.message.contains(key) == true)
    }
}
