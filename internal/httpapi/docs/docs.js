// Draws the description of the API. Text goes into the page as text only, so
// nothing in the description can become markup.
'use strict';

const methods = ['get', 'post', 'put', 'head', 'delete', 'patch'];
let spec;

function el(tag, attrs, ...children) {
  const e = document.createElement(tag);
  for (const [k, v] of Object.entries(attrs || {})) {
    if (v !== undefined && v !== false) e.setAttribute(k, v === true ? '' : v);
  }
  for (const c of children.flat()) {
    if (c !== null && c !== undefined && c !== '') e.append(c);
  }
  return e;
}

// prose knows paragraphs and `code`.
function prose(text) {
  return (text || '').split('\n\n').filter(Boolean).map(p =>
    el('p', {}, p.split('`').map((s, i) => i % 2 ? el('code', {}, s) : s)));
}

function inline(text) {
  return (text || '').split('`').map((s, i) => i % 2 ? el('code', {}, s) : s);
}

function refName(schema) {
  return schema && schema.$ref ? schema.$ref.split('/').pop() : '';
}

function resolve(schema) {
  const name = refName(schema);
  return name ? spec.components.schemas[name] || {} : schema || {};
}

function kind(schema) {
  if (!schema) return '';
  const name = refName(schema);
  if (name) return el('a', { href: '#schema-' + name }, name);
  if (schema.oneOf) {
    const parts = schema.oneOf.map(kind);
    return el('span', {}, parts.flatMap((p, i) => i ? [' or ', p] : [p]));
  }
  const type = [].concat(schema.type || 'any').filter(t => t !== 'null').join(' or ');
  if (type === 'array') return el('span', {}, 'list of ', kind(schema.items));
  if (type === 'object' && schema.additionalProperties && schema.additionalProperties.type) {
    return el('span', {}, 'map of ', kind(schema.additionalProperties));
  }
  if (schema.format === 'binary') return 'bytes';
  if (schema.format === 'date-time') return 'time';
  return type;
}

function limits(schema) {
  const out = [];
  if (schema.enum) out.push('one of ' + schema.enum.join(', '));
  if (schema.minimum) out.push('at least ' + schema.minimum);
  if (schema.maximum !== undefined) out.push('at most ' + schema.maximum);
  if (schema.maxLength !== undefined) out.push('at most ' + schema.maxLength + ' characters');
  if (schema.default !== undefined) out.push('default ' + schema.default);
  if (schema.examples) out.push('as ' + schema.examples.join(' or '));
  return out.join('; ');
}

function about(schema, description) {
  const l = limits(resolve(schema));
  return [inline(description || schema.description), l ? el('span', { class: 'faint' }, ' (' + l + ')') : ''].flat();
}

// fields shows a schema as a tree; structs inside open on demand. needed is
// what is said of a field that cannot be missing.
function fields(schema, seen, needed) {
  const s = resolve(schema);
  const name = refName(schema);
  if (seen.includes(name) && name) return el('span', { class: 'faint' }, 'see above');
  if (s.type === 'array' || (Array.isArray(s.type) && s.type.includes('array'))) return fields(s.items, seen, needed);
  if (!s.properties) return el('p', {}, kind(schema), ' ', about(s));
  const required = s.required || [];
  return el('ul', { class: 'fields' }, Object.entries(s.properties).map(([key, p]) => {
    const head = [el('code', {}, key), ' ', el('span', { class: 'kind' }, kind(p)),
      required.includes(key) ? el('span', { class: 'req' }, needed) : '', ' ', ...about(p)];
    const inner = resolve(p.type === 'array' || (Array.isArray(p.type) && p.type.includes('array')) ? p.items : p);
    if (!inner.properties) return el('li', {}, head);
    const body = el('div');
    const d = el('details', {}, el('summary', {}, head), body);
    d.addEventListener('toggle', () => { if (!body.firstChild) body.append(fields(p, seen.concat(name), needed)); });
    return el('li', {}, d);
  }));
}

function parameters(op) {
  if (!op.parameters || !op.parameters.length) return [];
  return [el('h4', {}, 'Parameters'), el('table', {},
    el('thead', {}, el('tr', {}, el('th', {}, 'Name'), el('th', {}, 'Kind'), el('th', {}, 'Meaning'))),
    el('tbody', {}, op.parameters.map(p => el('tr', {},
      el('td', {}, el('code', {}, p.name), p.required ? el('span', { class: 'req' }, 'needed') : ''),
      el('td', { class: 'kind' }, p.in + ', ', kind(p.schema)),
      el('td', {}, about(p.schema || {}, p.description))))))];
}

function content(c, needed) {
  return Object.entries(c || {}).map(([type, m]) => {
    const s = resolve(m.schema);
    const head = el('span', {}, el('code', {}, type), ' ', kind(m.schema));
    if (!s.properties) return el('div', {}, head);
    return el('details', { open: true }, el('summary', {}, head), fields(m.schema, [], needed));
  });
}

function answers(op) {
  const good = [], bad = [];
  for (const [code, r] of Object.entries(op.responses || {})) (code < '3' ? good : bad).push([code, r]);
  const out = [el('h4', {}, 'Answer')];
  for (const [code, r] of good) {
    out.push(el('p', {}, el('strong', {}, code), ' ', inline(r.description)));
    const headers = Object.entries(r.headers || {});
    if (headers.length) {
      out.push(el('ul', { class: 'fields' }, headers.map(([n, h]) =>
        el('li', {}, el('code', {}, n), ' ', about(h.schema || {}, h.description)))));
    }
    out.push(...content(r.content, 'always there'));
  }
  if (bad.length) {
    out.push(el('p', { class: 'faint' }, 'Problems: ', bad.map(([code, r]) => code + ' ' + r.description).join(', ')));
  }
  return out;
}

function example(method, path, op) {
  const url = location.origin + path.replace('{namespace}', 'default');
  let line = 'curl ';
  if (method === 'head') line += '--head ';
  else if (method === 'post') line += '-X POST ';
  if (!op.security) line += '-H "Authorization: Bearer $TOKEN" ';
  const types = Object.keys((op.requestBody || {}).content || {});
  if (types.includes('application/json')) line += "-H 'Content-Type: application/json' -d @body.json ";
  else if (types.length) line += '-T FILE ';
  if (op.operationId === 'watch-events') line += '-N ';
  return line + "'" + url + "'";
}

function operation(method, path, op) {
  return el('article', { id: op.operationId },
    el('h3', {}, op.summary),
    el('div', { class: 'line' }, el('span', { class: 'method ' + method.toUpperCase() }, method.toUpperCase()), el('span', { class: 'path' }, path)),
    prose(op.description),
    op.security ? el('p', { class: 'faint' }, 'Needs no token.') : '',
    parameters(op),
    op.requestBody ? [el('h4', {}, op.requestBody.required ? 'Body' : 'Body, optional'), ...content(op.requestBody.content, 'needed')] : [],
    answers(op),
    el('pre', { class: 'example' }, example(method, path, op)));
}

function draw() {
  document.getElementById('version').textContent = spec.info.version;
  document.getElementById('intro').append(...prose(spec.info.description));
  document.getElementById('hello').textContent = 'curl -H "Authorization: Bearer $TOKEN" ' + location.origin + '/v1/server';
  const byTag = new Map(spec.tags.map(t => [t.name, []]));
  for (const [path, item] of Object.entries(spec.paths).sort()) {
    for (const m of methods) {
      if (item[m]) byTag.get(item[m].tags[0]).push([m, path, item[m]]);
    }
  }
  const index = document.getElementById('index'), main = document.getElementById('operations');
  main.textContent = '';
  for (const t of spec.tags) {
    const ops = byTag.get(t.name);
    if (!ops.length) continue;
    index.append(el('section', {}, el('h2', {}, t.name), ops.map(([m, p, op]) =>
      el('a', { class: 'op', href: '#' + op.operationId, title: m.toUpperCase() + ' ' + p }, op.summary))));
    main.append(el('h2', { class: 'tag' }, t.name), el('p', {}, t.description), ...ops.map(o => operation(...o)));
  }
  const schemas = document.getElementById('schemas');
  schemas.append(el('h2', { class: 'tag' }, 'Types'));
  for (const name of Object.keys(spec.components.schemas).sort()) {
    schemas.append(el('article', { id: 'schema-' + name }, el('h3', {}, name),
      prose(spec.components.schemas[name].description), fields({ $ref: '#/components/schemas/' + name }, [], 'needed')));
  }
  if (location.hash) document.getElementById(location.hash.slice(1))?.scrollIntoView();
}

document.getElementById('filter').addEventListener('input', e => {
  const want = e.target.value.toLowerCase();
  for (const section of document.querySelectorAll('#index section')) {
    let any = false;
    for (const a of section.querySelectorAll('a')) {
      a.hidden = !(a.textContent + ' ' + a.title).toLowerCase().includes(want);
      any = any || !a.hidden;
    }
    section.hidden = !any;
  }
});

fetch('/openapi.json').then(r => {
  if (!r.ok) throw new Error(r.status + ' ' + r.statusText);
  return r.json();
}).then(s => { spec = s; draw(); }).catch(err => {
  document.getElementById('operations').replaceChildren(el('p', { class: 'error' }, 'The description could not be read: ' + err.message));
});
